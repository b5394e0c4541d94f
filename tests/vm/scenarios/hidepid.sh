# /proc that hides the processes of others: root sees them all, and another user's daemon says what it lacks.
mount -o remount,hidepid=2 /proc
su -s /bin/sh alice -c 'exec sleep 1000' &
sleep 0.5
start_daemon <<YAML
sampling: {interval: 500ms}
sources: {workload: {matchers: [{name: sleeper, command_line: "sleep 1000"}]}}
YAML
check "root's daemon sees another user's process" within 30 has 'memwarden_workload_info{workload="sleeper"' 1
kill "$daemon"
wait "$daemon"
rm -rf /tmp/state
mkdir -m 777 /tmp/state
su -s /bin/sh mallory -c 'exec memwarden serve --config.file /tmp/memwarden.yaml \
    --set sources.training.socket=/tmp/state/jobs.sock' >/tmp/log 2>&1 &
daemon=$!
check "another user's daemon serves" within 60 frame
check "and does not claim to see it" absent 'memwarden_workload_info{workload="sleeper"'
mount -o remount,hidepid=0 /proc
