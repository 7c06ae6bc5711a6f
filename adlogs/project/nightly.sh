#!/usr/bin/env bash
# A whole night: check the log, train the heavy ranker, distil it, build the index, publish. What serves stays until
# the last step, and each step may refuse. After a failure run it again with the same name: it goes on where it was.
#
#   ./nightly.sh [NIGHT]      NIGHT names the folder of this night's work; today's date in UTC unless given
set -euo pipefail
cd "$(dirname "$0")"
set -a
. ./.env
set +a

days_ago() {
    python3 -c 'import datetime, sys; print(datetime.datetime.now(datetime.timezone.utc).date() - datetime.timedelta(int(sys.argv[1])))' "$1"
}
: "${TEACHER_UNTIL:=$(days_ago 4)}"   # the teacher learns what came before, and scores what came after
: "${STUDENT_UNTIL:=$(days_ago 1)}"   # the student learns until then, and is judged on the rest
night=nights/${1:-$(date -u +%F)}
mkdir -p "$night"

# Runs a command unless what it makes is there from an earlier try.
once() {
    local made=$1
    shift
    if [ -e "$made" ]; then
        echo "== $made is there"
    else
        echo "== adsieve $*"
        adsieve "$@"
    fi
}

adsieve validate "$LOGS" --schema schemas/heavy.yaml

# The teacher. It never scores what it has learned from.
once "$night/heavy.yaml" schema fit schemas/heavy.yaml --logs "$LOGS" --until "$TEACHER_UNTIL" --out "$night/heavy.yaml"
once "$night/heavy" heavy train --logs "$LOGS" --schema "$night/heavy.yaml" --config training/heavy.yaml \
    --until "$TEACHER_UNTIL" --out "$night/heavy-run"
# A student of a teacher that knows no more than the base rate would learn nothing: the night ends here then.
once "$night/heavy" heavy export --logs "$LOGS" --run "$night/heavy-run" --out "$night/heavy" \
    ${TEACHER_MAX_NE:+--max-normalised-entropy "$TEACHER_MAX_NE"}
once "$night/scored.done" heavy score --logs "$LOGS" --bundle "$night/heavy" --from "$TEACHER_UNTIL" --out "$night/scored"
touch "$night/scored.done"

# A student, an index and a release for each scenario.
once "$night/towers.yaml" schema fit schemas/towers.yaml --logs "$LOGS" --until "$STUDENT_UNTIL" --out "$night/towers.yaml"
for scenario in $SCENARIOS; do
    place=$night/$scenario
    mkdir -p "$place"
    data=(--logs "$LOGS" --candidates "$night/scored/candidates")
    once "$place/towers" distill train "${data[@]}" --schema "$night/towers.yaml" --scenario "$scenario" \
        --config training/towers.yaml --from "$TEACHER_UNTIL" --until "$STUDENT_UNTIL" --store "$ADSIEVE_STORE" \
        --out "$place/towers-run"
    once "$place/towers" distill publish "${data[@]}" --run "$place/towers-run" --from "$STUDENT_UNTIL" \
        --store "$ADSIEVE_STORE" --limits limits.yaml --out "$place/towers"
    once "$place/report" distill evaluate "${data[@]}" --bundle "$place/towers" --from "$STUDENT_UNTIL" --out "$place/report"
    once "$place/index" index build --ads "$LOGS/ads" --two-tower "$place/towers" --heavy "$night/heavy" \
        --store "$ADSIEVE_STORE" --out "$place/index"
    once "$place/published" index publish --two-tower "$place/towers" --heavy "$night/heavy" --index "$place/index" \
        --store "$ADSIEVE_STORE"
    touch "$place/published"
    head -n 1 "$place/towers/requests.jsonl" > "request-$scenario.json"   # a request of the log, to try the release with
done
adsieve index prune --keep 3 --store "$ADSIEVE_STORE"
adsieve index list --store "$ADSIEVE_STORE"
