#!/bin/bash
# Installs what tests/cluster needs on Debian or Ubuntu, as root: Slurm, munge, MariaDB for sacct, iproute2 for the
# nodes' networks. Safe to repeat. No service starts: the tests bring up their own daemons with their own files.
set -euo pipefail

packages=(slurmctld slurmd slurm-client munge slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
          iproute2 util-linux procps)

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || { echo "all packages are installed"; exit 0; }

# Debian asks this script before it starts a service; 101 means no. A policy that is already there stays in force.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -q </dev/null
apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null
