//! How many processors this process may use: the default of `server.threads` and of `processes`.
//!
//! Asked by `model` when it makes a default. The standard library counts them too, but it rounds a
//! quota down: with 1.5 processors one thread and one process would leave a third of them unused.
//!
//! # Invariants
//! - At least one, and never more than the scheduler lets the process run on.
//! - A quota of any group above the process's own counts, in version 1 and in version 2 of cgroups.
//! - What cannot be read bounds nothing.

use std::path::{Path, PathBuf};

use crate::disk::read_source_or_empty;

/// Number of processors this process may use, at least one.
pub(crate) fn usable_cpus() -> usize {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    count_cpus(Path::new("/"), available)
}

/// As [`usable_cpus`], where `/proc` and the mounted groups are below `root`; `available` counts
/// where the processors of the process are not listed.
fn count_cpus(root: &Path, available: usize) -> usize {
    let allowed = allowed_cpus(&read_source_or_empty(&root.join("proc/self/status")));
    match (allowed, cpu_quota(root)) {
        (Some(allowed), Some(quota)) => allowed.min(quota).max(1),
        (Some(allowed), None) => allowed.max(1),
        // Bounded by any quota already.
        (None, _) => available,
    }
}

/// The length of `Cpus_allowed_list` (proc_pid_status(5)), such as `0-2,7`.
fn allowed_cpus(status: &str) -> Option<usize> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut count = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

/// The smallest quota of the process's groups, in whole processors, rounded up.
fn cpu_quota(root: &Path) -> Option<usize> {
    let groups = read_source_or_empty(&root.join("proc/self/cgroup"));
    let mounts = read_source_or_empty(&root.join("proc/self/mountinfo"));
    let mut quotas = Vec::new();
    for line in groups.lines() {
        // cgroups(7): number, controllers, path.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|one| one == "cpu") {
            continue;
        }
        let found = mounts.lines().filter_map(CgroupMount::parse);
        for mount in found.filter(|mount| mount.is_unified == is_unified) {
            let top = root.join(mount.mount_point.trim_start_matches('/'));
            quotas.extend(
                mount
                    .group_dirs(&top, group)
                    .filter_map(|folder| match is_unified {
                        true => cpu_quota_v2(&folder),
                        false => cpu_quota_v1(&folder),
                    }),
            );
        }
    }
    quotas.into_iter().min()
}

/// A mounted hierarchy in which processors are shared out.
struct CgroupMount<'a> {
    /// Which group the mount point shows.
    mounted_group: &'a str,
    mount_point: &'a str,
    is_unified: bool,
}

impl<'a> CgroupMount<'a> {
    /// A line of mountinfo (proc_pid_mountinfo(5)); `None` for any other file system.
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (group, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let is_unified = match after.next()? {
            "cgroup2" => true,
            "cgroup" if after.nth(1)?.split(',').any(|one| one == "cpu") => false,
            _ => return None,
        };
        Some(Self {
            mounted_group: group,
            mount_point: point,
            is_unified,
        })
    }

    /// The directories of `group` and of those above it, below the mount point `top`.
    fn group_dirs(&self, top: &Path, group: &str) -> impl Iterator<Item = PathBuf> {
        // A container may see its group mounted at the top, under the name that it has outside.
        let group = Path::new(group);
        let below = group
            .strip_prefix(self.mounted_group)
            .unwrap_or_else(|_| Path::new(""));
        let end = top.to_owned();
        let all: Vec<PathBuf> = top.join(below).ancestors().map(Path::to_owned).collect();
        all.into_iter()
            .take_while(move |folder| folder.starts_with(&end))
    }
}

/// `cpu.max` is `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn cpu_quota_v2(folder: &Path) -> Option<usize> {
    let text = read_source_or_empty(&folder.join("cpu.max"));
    let (quota, period) = text.trim().split_once(' ')?;
    quota_in_cpus(quota, period)
}

/// -1 is no quota.
fn cpu_quota_v1(folder: &Path) -> Option<usize> {
    let quota = read_source_or_empty(&folder.join("cpu.cfs_quota_us"));
    let period = read_source_or_empty(&folder.join("cpu.cfs_period_us"));
    quota_in_cpus(quota.trim(), period.trim())
}

fn quota_in_cpus(quota: &str, period: &str) -> Option<usize> {
    let (quota, period) = (quota.parse::<usize>().ok()?, period.parse::<usize>().ok()?);
    (period > 0).then(|| quota.div_ceil(period).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    // As a container without a namespace of groups of its own sees it.
    const INSIDE: &str = "32 31 0:29 /docker/ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";

    #[test]
    fn a_quota_is_rounded_up_and_counts_from_every_group_above() {
        let v1_groups = "4:cpu,cpuacct:/a/b\n3:cpuset:/\n0::/a\n";
        type Files = &'static [(&'static str, &'static str)];
        let rows: [(&str, &str, &str, Files, usize); 11] = [
            ("no groups", "", "", &[], 8),
            (
                "no limit",
                V2,
                "0::/a\n",
                &[("a/cpu.max", "max 100000\n")],
                8,
            ),
            (
                "one and a half",
                V2,
                "0::/a\n",
                &[("a/cpu.max", "150000 100000\n")],
                2,
            ),
            (
                "a tenth",
                V2,
                "0::/a\n",
                &[("a/cpu.max", "10000 100000\n")],
                1,
            ),
            (
                "exactly three",
                V2,
                "0::/a\n",
                &[("a/cpu.max", "300000 100000\n")],
                3,
            ),
            (
                "more than there are",
                V2,
                "0::/a\n",
                &[("a/cpu.max", "9900000 100000\n")],
                8,
            ),
            (
                "of a group above",
                V2,
                "0::/a/b\n",
                &[
                    ("a/b/cpu.max", "max 100000\n"),
                    ("a/cpu.max", "250000 100000\n"),
                ],
                3,
            ),
            (
                "in a namespace",
                V2,
                "0::/\n",
                &[("cpu.max", "150000 100000\n")],
                2,
            ),
            (
                "version 1",
                V1,
                v1_groups,
                &[
                    ("cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"),
                    ("cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"),
                    ("cpu,cpuacct/a/cpu.cfs_quota_us", "350000\n"),
                    ("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
                    // Of another controller's group.
                    ("cpuset/cpu.cfs_quota_us", "100000\n"),
                    ("cpuset/cpu.cfs_period_us", "100000\n"),
                ],
                4,
            ),
            (
                "version 1 as a container sees it",
                INSIDE,
                "1:cpu:/docker/ab\n",
                &[
                    ("cpu/cpu.cfs_quota_us", "50000\n"),
                    ("cpu/cpu.cfs_period_us", "20000\n"),
                ],
                3,
            ),
            (
                "what is no number",
                V2,
                "0::/a\n",
                &[("a/cpu.max", "many\n")],
                8,
            ),
        ];
        for (name, mounts, groups, files, expected) in rows {
            let folder = TestDir::with_files(&[
                (
                    "proc/self/status",
                    "Name:\tx\nCpus_allowed_list:\t0-3,8-10,12\n",
                ),
                ("proc/self/mountinfo", mounts),
                ("proc/self/cgroup", groups),
            ]);
            for (path, text) in files {
                folder.add(&format!("sys/fs/cgroup/{path}"), text);
            }
            assert_eq!(count_cpus(folder.path(), 5), expected, "{name}");
        }
    }

    #[test]
    fn without_proc_the_standard_library_counts() {
        let folder = TestDir::with_files(&[]);
        assert_eq!(count_cpus(folder.path(), 5), 5);
    }
}
