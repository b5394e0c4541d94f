# Pressure information where the kernel has it, and its absence said where it has not.
start_daemon <<YAML
sampling: {interval: 500ms}
YAML
if [ -f /proc/pressure/memory ] && cat /proc/pressure/memory >/dev/null 2>&1; then
    check "memory pressure is told" within 30 above \
        'memwarden_host_pressure_stalled_seconds_total{resource="memory",kind="some"}' -1
    check "the source is up" within 30 has 'memwarden_source_up{source="pressure"}' 1
else
    check "there is no series" within 30 absent memwarden_host_pressure_ratio
    check "the source says that it is unavailable" within 30 has \
        'memwarden_source_status{source="pressure",status="unavailable"}' 1
    check "protection says it too" within 30 has 'memwarden_protection_prerequisite_met{need="psi"}' 0
fi
