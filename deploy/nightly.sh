#!/bin/sh
# One night: build an index for each scenario, publish all of them, look whether they serve, prune.
# Nothing is published unless every build succeeds. If a publish or what is looked at afterwards fails, or the job is
# stopped in between, every scenario that was published goes back to the release that served before.
# Exit codes: 0 done, 1 the work failed (the releases of before serve), 2 wrong usage.
#
#   ADSIEVE_STORE           where releases are published: a directory, or a Redis URL (ADSIEVE_REDIS_PASSWORD)
#   NIGHTLY_SCENARIOS       names, with spaces between them
#   NIGHTLY_ADS             the ads dataset; @ stands for the scenario, if there is one for each
#   NIGHTLY_TWO_TOWER       the two-tower bundle of a scenario, with @ for its name: /data/bundles/@
#   NIGHTLY_HEAVY           the heavy bundle, or empty: releases then end with the towers
#   NIGHTLY_WORK            directory for indexes while they are made; a killed build goes on there the next time
#   NIGHTLY_LIMITS          file of limits for `adsieve index publish`, if they are not to be the usual ones
#   NIGHTLY_CANARY          request file that has to be answered with ads after the publish, with @ for the scenario
#   NIGHTLY_URL             a service that has to take up the new releases, such as http://rank:8000
#   NIGHTLY_PATIENCE_S      how long it may take for that (300)
#   NIGHTLY_KEEP            releases of each scenario to keep (3)
set -eu

say() { printf '%s nightly: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >&2; }
usage() { say "$*"; exit 2; }
# A with @ replaced by B
of() { printf '%s' "$1" | sed "s|@|$2|g"; }

: "${ADSIEVE_STORE:=}" "${NIGHTLY_SCENARIOS:=}" "${NIGHTLY_ADS:=}" "${NIGHTLY_TWO_TOWER:=}" "${NIGHTLY_WORK:=}"
: "${NIGHTLY_HEAVY:=}" "${NIGHTLY_LIMITS:=}" "${NIGHTLY_CANARY:=}" "${NIGHTLY_URL:=}"
: "${NIGHTLY_PATIENCE_S:=300}" "${NIGHTLY_KEEP:=3}"
for name in ADSIEVE_STORE NIGHTLY_SCENARIOS NIGHTLY_ADS NIGHTLY_TWO_TOWER NIGHTLY_WORK; do
    eval "value=\$$name"
    [ -n "$value" ] || usage "$name is not set"
done
for scenario in $NIGHTLY_SCENARIOS; do
    case $scenario in *[!A-Za-z0-9_.-]*) usage "NIGHTLY_SCENARIOS: $scenario is no name of a scenario" ;; esac
    bundle=$(of "$NIGHTLY_TWO_TOWER" "$scenario")
    [ -d "$bundle" ] || usage "NIGHTLY_TWO_TOWER: $bundle is no directory"
done
[ -z "$NIGHTLY_HEAVY" ] || [ -d "$NIGHTLY_HEAVY" ] || usage "NIGHTLY_HEAVY: $NIGHTLY_HEAVY is no directory"
export ADSIEVE_STORE
mkdir -p "$NIGHTLY_WORK"
exec 9>"$NIGHTLY_WORK/.lock"
flock -n 9 || { say "another night is at work in $NIGHTLY_WORK"; exit 1; }

# The release that serves a scenario; nothing where there is none.
serving() {
    adsieve index list --json | python3 -c '
import json, sys
found = json.load(sys.stdin)["releases"].get(sys.argv[1], [])
print(next((one["release_id"] for one in found if one["state"] == "current"), ""))' "$1"
}

# In the background, since a shell that waits for a command in the foreground hears no signal.
child=""
run() {
    "$@" &
    child=$!
    wait "$child"
    child=""
}

published=""
go_back() {
    status=$?
    trap - EXIT
    trap '' INT TERM HUP
    for pair in $published; do
        scenario=${pair%%=*} before=${pair#*=}
        if [ -z "$before" ]; then
            say "$scenario: nothing served before, so there is nothing to go back to"
        elif [ "$(serving "$scenario")" = "$before" ]; then
            say "$scenario: $before still serves"
        elif adsieve index rollback --scenario "$scenario" --to "$before" >&2; then
            say "$scenario: rolled back to $before"
        else
            say "$scenario: COULD NOT BE ROLLED BACK; run: adsieve index rollback --scenario $scenario --to $before"
        fi
    done
    [ "$status" -eq 0 ] || say "failed"
    [ "$status" -le 2 ] || status=1
    exit "$status"
}
stopped() {
    say "stopped"
    [ -z "$child" ] || { kill "$child" && wait "$child"; } || true
    exit 1
}
trap go_back EXIT
trap stopped INT TERM HUP

# What looks at the answer to a canary.
answered='
import json, sys
with open(sys.argv[1]) as file:
    answer = json.load(file)
if not answer["ads"]["ids"] or answer["degraded"]:
    dropped = {reason: ids for reason, ids in answer["dropped"].items() if ids}
    sys.exit("the canary got {0} ads, degraded: {1}, dropped: {2}".format(
        len(answer["ads"]["ids"]), answer["degraded"], dropped))'
# What waits until a service has taken up a release.
taken_up='
import json, sys, time, urllib.request
url, scenario, release, patience_s = *sys.argv[1:4], float(sys.argv[4])
end, seen = time.monotonic() + patience_s, "no answer"
while time.monotonic() < end:
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/releases", timeout=10) as answer:
            told = json.load(answer)
    except (OSError, ValueError) as error:
        seen = str(error)
    else:
        refused = [one["error"] for one in told["refused"] if one["release_id"] == release]
        if refused:
            sys.exit(f"{url} refuses {release}: {refused[0]}")
        seen = {one["scenario"]: one["release_id"] for one in told["serving"]}.get(scenario)
        if seen == release:
            sys.exit(0)
    time.sleep(min(1.0, patience_s / 10))
sys.exit(f"{url} does not serve {release} after {patience_s:g} s, but {seen}")'

# 1. Build: nothing that serves is touched. An index that was whole and not published is of another night: it goes.
for scenario in $NIGHTLY_SCENARIOS; do
    out=$NIGHTLY_WORK/index-$scenario
    rm -rf "$out"
    say "$scenario: build"
    set -- --ads "$(of "$NIGHTLY_ADS" "$scenario")" --two-tower "$(of "$NIGHTLY_TWO_TOWER" "$scenario")" --out "$out"
    [ -z "$NIGHTLY_HEAVY" ] || set -- "$@" --heavy "$NIGHTLY_HEAVY"
    run adsieve index build "$@" >&2
done

# 2. Publish: verified, replayed and judged by the command itself.
for scenario in $NIGHTLY_SCENARIOS; do
    before=$(serving "$scenario")
    say "$scenario: publish, ${before:-nothing} serves"
    set -- --two-tower "$(of "$NIGHTLY_TWO_TOWER" "$scenario")" --index "$NIGHTLY_WORK/index-$scenario"
    [ -z "$NIGHTLY_HEAVY" ] || set -- "$@" --heavy "$NIGHTLY_HEAVY"
    [ -z "$NIGHTLY_LIMITS" ] || set -- "$@" --limits "$NIGHTLY_LIMITS"
    published="$published $scenario=$before" # before the pointer moves: a job that is stopped then goes back too
    run adsieve index publish "$@" >&2
done

# 3. Look: the canary is answered with ads by what was published, and the service has taken it up.
for scenario in $NIGHTLY_SCENARIOS; do
    if [ -n "$NIGHTLY_CANARY" ]; then
        say "$scenario: canary"
        run adsieve rank "$(of "$NIGHTLY_CANARY" "$scenario")" --json >"$NIGHTLY_WORK/canary.json"
        run python3 -c "$answered" "$NIGHTLY_WORK/canary.json"
    fi
    if [ -n "$NIGHTLY_URL" ]; then
        say "$scenario: wait for $NIGHTLY_URL"
        run python3 -c "$taken_up" "$NIGHTLY_URL" "$scenario" "$(serving "$scenario")" "$NIGHTLY_PATIENCE_S"
    fi
done

# 4. Settled: what was published stays, whatever happens to the tidying up.
published=""
for scenario in $NIGHTLY_SCENARIOS; do
    rm -rf "$NIGHTLY_WORK/index-$scenario"
done
run adsieve index prune --keep "$NIGHTLY_KEEP" >&2
say "done"
