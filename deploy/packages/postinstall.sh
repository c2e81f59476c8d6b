#!/bin/sh
# An upgrade restarts no process: docs/upgrade.md has the order.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
