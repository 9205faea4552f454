//! Finds the cgroup of this process for each controller.
//!
//! `cgroup` passes the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`; nothing else is
//! assumed about where a host, a container or a service manager puts cgroups. Pure.
//!
//! # Invariants
//! - A controller of a version 1 hierarchy is never looked for in version 2: the kernel has it in
//!   one.
//! - A cgroup outside of the mounted hierarchies is not found.

use std::path::{Component, Path, PathBuf};

use super::Controller;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    /// A hierarchy for some controllers.
    V1,
    /// The one for all others.
    V2,
}

/// Where the own cgroup may be found. Several mounts may show it, and a later one may hide another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CgroupLocation {
    pub(super) version: CgroupVersion,
    pub(super) folders: Vec<PathBuf>,
}

/// Why no cgroup was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingCgroup {
    /// The kernel does not have the controller, or any cgroups.
    NotInKernel,
    /// Its hierarchy is not mounted here, or the own cgroup is outside of the mounted part.
    NotMounted,
}

/// Finds the own cgroup for a controller in the texts of the two files.
pub(super) fn find_own_cgroup(
    controller: Controller,
    cgroup: &str,
    mountinfo: &str,
) -> Result<CgroupLocation, MissingCgroup> {
    let (version, path) = membership(controller, cgroup).ok_or(MissingCgroup::NotInKernel)?;
    let mounts = mountinfo.lines().filter_map(Mount::read);
    let mounts = mounts.filter(|mount| mount.has(version, controller));
    // The last mount is on top.
    let mut folders: Vec<_> = mounts.filter_map(|mount| mount.folder(path)).collect();
    folders.reverse();
    match folders.is_empty() {
        true => Err(MissingCgroup::NotMounted),
        false => Ok(CgroupLocation { version, folders }),
    }
}

/// The hierarchy that has a controller, and the own path in it.
fn membership(controller: Controller, cgroup: &str) -> Option<(CgroupVersion, &Path)> {
    let mut unified = None;
    for line in cgroup.lines() {
        // The path is last and may contain colons.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if names.split(',').any(|name| name == controller.name()) {
            return Some((CgroupVersion::V1, Path::new(path)));
        }
        if number == "0" && names.is_empty() {
            unified = Some((CgroupVersion::V2, Path::new(path)));
        }
    }
    unified
}

struct Mount<'a> {
    /// The cgroup at its root.
    root: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of mountinfo (proc(5)), if it is about cgroups.
    fn read(line: &'a str) -> Option<Self> {
        // Optional fields end with a separate dash; no path contains a space here.
        let (about, file_system) = line.split_once(" - ")?;
        let mut about = about.split(' ').skip(3);
        let (root, point) = (about.next()?, about.next()?);
        let mut file_system = file_system.split(' ');
        let (kind, _source) = (file_system.next()?, file_system.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| Self {
            root: unescape(root),
            point: unescape(point),
            kind,
            options: file_system.next().unwrap_or_default(),
        })
    }

    fn has(&self, version: CgroupVersion, controller: Controller) -> bool {
        match version {
            CgroupVersion::V1 => {
                let mut options = self.options.split(',');
                self.kind == "cgroup" && options.any(|option| option == controller.name())
            }
            CgroupVersion::V2 => self.kind == "cgroup2",
        }
    }

    /// Where a cgroup is below the mount point, if it is there.
    fn folder(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).ok()?;
        // A cgroup outside of the namespace begins with `/..`.
        let is_plain = |part| matches!(part, Component::Normal(_));
        below.components().all(is_plain).then(|| match below {
            own if own.as_os_str().is_empty() => self.point.clone(),
            _ => self.point.join(below),
        })
    }
}

/// Spaces, tabs, line ends and backslashes are octal numbers there.
fn unescape(text: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n")];
    let text = (plain.iter()).fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    text.replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Controller::{Cpu, Memory, Tasks};

    fn found(controller: Controller, cgroup: &str, mountinfo: &str) -> (CgroupVersion, String) {
        let place = find_own_cgroup(controller, cgroup, mountinfo).unwrap();
        let folders: Vec<_> = place
            .folders
            .iter()
            .map(|it| it.to_str().unwrap())
            .collect();
        (place.version, folders.join(" "))
    }

    /// A service of systemd with one hierarchy.
    const UNIFIED: (&str, &str) = (
        "0::/system.slice/penstock.service\n",
        "24 30 0:22 / /proc rw,nosuid - proc proc rw\n\
         30 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
         35 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    );

    #[test]
    fn one_hierarchy_has_all_controllers() {
        for controller in [Tasks, Memory, Cpu] {
            let (version, folder) = found(controller, UNIFIED.0, UNIFIED.1);
            assert_eq!(version, CgroupVersion::V2);
            assert_eq!(folder, "/sys/fs/cgroup/system.slice/penstock.service");
        }
    }

    /// A hierarchy for each controller, and an empty one of version 2.
    const HYBRID: (&str, &str) = (
        "8:pids:/\n4:memory:/jobs/a:b\n2:cpuacct:/other\n1:cpu,cpuset:/\n9:name=systemd:/\n0::/\n",
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
         32 31 0:29 / /sys/fs/cgroup/cpu,cpuset rw - cgroup cgroup rw,cpu,cpuset\n\
         33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
         35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         39 31 0:36 / /sys/fs/cgroup/pids\\040here rw master:3 - cgroup cgroup rw,pids\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );

    #[test]
    fn each_controller_has_its_own_hierarchy_in_version_1() {
        let of = |controller| found(controller, HYBRID.0, HYBRID.1);
        assert_eq!(of(Tasks).1, "/sys/fs/cgroup/pids here");
        assert_eq!(of(Memory).1, "/sys/fs/cgroup/memory/jobs/a:b");
        assert_eq!(of(Cpu).1, "/sys/fs/cgroup/cpu,cpuset");
        assert_eq!(of(Cpu).0, CgroupVersion::V1);
        // A controller that version 1 does not have is in version 2.
        let cgroup = HYBRID.0.replace("8:pids:/\n", "");
        assert_eq!(
            found(Tasks, &cgroup, HYBRID.1),
            (CgroupVersion::V2, "/sys/fs/cgroup/unified".to_owned())
        );
    }

    #[test]
    fn a_container_sees_its_own_part() {
        // With its own namespace, the root of both is the container's cgroup.
        let mountinfo = "9 8 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(found(Memory, "0::/\n", mountinfo).1, "/sys/fs/cgroup");
        // Without one, paths are the host's, and a part of the hierarchy is mounted.
        let cgroup = "7:memory:/docker/4f1\n0::/\n";
        let mountinfo = "9 8 0:9 /docker/4f1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(found(Memory, cgroup, mountinfo).1, "/sys/fs/cgroup/memory");
        let below = "7:memory:/docker/4f1/app\n";
        assert_eq!(
            found(Memory, below, mountinfo).1,
            "/sys/fs/cgroup/memory/app"
        );
        // A path that only shares a prefix is another.
        for cgroup in ["7:memory:/docker/4f12\n", "7:memory:/\n"] {
            assert_eq!(
                find_own_cgroup(Memory, cgroup, mountinfo),
                Err(MissingCgroup::NotMounted),
                "{cgroup}"
            );
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let (cgroup, mountinfo) = UNIFIED;
        let of = |cgroup, mountinfo| find_own_cgroup(Tasks, cgroup, mountinfo);
        for nonsense in ["", "0:\n", "pids\n", "::\n"] {
            assert_eq!(of(nonsense, mountinfo), Err(MissingCgroup::NotInKernel));
        }
        assert_eq!(of(cgroup, ""), Err(MissingCgroup::NotMounted));
        // Above the root of the namespace.
        assert_eq!(
            of("0::/../../x\n", mountinfo),
            Err(MissingCgroup::NotMounted)
        );
        let odd = "35 24 0:27 / - cgroup2\n24 - cgroup2 x\ncgroup2 - \n";
        assert_eq!(of(cgroup, odd), Err(MissingCgroup::NotMounted));
    }

    #[test]
    fn the_mount_on_top_is_tried_first() {
        let twice = "35 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                     36 24 0:27 / /mnt rw - cgroup2 cgroup2 rw\n";
        assert_eq!(found(Tasks, "0::/a\n", twice).1, "/mnt/a /sys/fs/cgroup/a");
    }
}
