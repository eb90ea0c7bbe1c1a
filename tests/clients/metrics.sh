#!/usr/bin/env bash
# Checks what nodes answer at /metrics: promtool finds nothing to complain of in the classic format, and a client that
# asks for OpenMetrics gets that.
#
#   metrics.sh HOST ADMIN_PORT...
#
# Needs curl and promtool (Debian: prometheus).
set -euo pipefail
host=$1
shift
for port in "$@"; do
    url="http://$host:$port/metrics"
    curl --silent --show-error --fail "$url" | promtool check metrics
    open=$(curl --silent --show-error --fail --include --header 'Accept: application/openmetrics-text;version=1.0.0' "$url")
    grep -qi '^content-type: application/openmetrics-text; version=1.0.0' <<<"$open"
    [ "$(tail -n 1 <<<"$open")" = "# EOF" ]
done
echo "promtool finds nothing wrong with the metrics of $# nodes"
