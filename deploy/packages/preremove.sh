#!/bin/sh
# Debian says remove, RPM says 0; an upgrade lets the processes run.
set -e
case $1 in remove | 0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then systemctl disable --now db-controller-registry.service 'db-controller@*.service' || true; fi
