//! Control groups of a deployment: its memory and disk limits, and its exact CPU time.
//!
//! `supervised` makes a [`Cgroup`] before it starts the keeper. The commands join it themselves;
//! the keeper stays outside, so that its own time does not count and a lack of memory does not kill
//! it. Version 1 hierarchies (one per controller) and version 2 are supported, whichever has the
//! controller.
//!
//! # Invariants
//!
//! - Without permission a deployment without limits still runs; one with a limit fails with the
//!   cause.
//! - The groups are removed after the deployment.

#![allow(
    clippy::disallowed_methods,
    reason = "control groups are memory, and are written between loads"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::DeployError;
use super::resource_usage::find_field;

#[derive(Debug, Default)]
pub(super) struct CgroupLimits<'a> {
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// Bytes per second, and the files' directories.
    pub(super) disk_read: Option<(u64, &'a [&'a Path])>,
}

/// The control groups of one deployment; removed on drop.
#[derive(Debug)]
pub(super) struct Cgroup {
    /// The groups to join.
    pub(super) dirs: Vec<PathBuf>,
    /// The file with the CPU time, what precedes the figure, and its unit's part of a second.
    cpu_file: Option<(PathBuf, &'static str, f64)>,
}

impl Cgroup {
    /// Creates the groups for the limits, and one that counts CPU time where possible.
    pub(super) fn create(name: &str, limits: &CgroupLimits<'_>) -> Result<Self, DeployError> {
        let mounts = CgroupMounts::read();
        let mut group = Self {
            dirs: Vec::new(),
            cpu_file: None,
        };
        let wrong = |what| move |error: io::Error| limit_error(what, &error);
        if let Some(bytes) = limits.memory {
            let done = group.limit_memory(&mounts, name, bytes);
            done.map_err(wrong("memory"))?;
        }
        if let Some((rate, paths)) = limits.disk_read {
            let done = group.limit_disk(&mounts, name, rate, paths);
            done.map_err(wrong("disk_read"))?;
        }
        group.count_cpu(&mounts, name);
        Ok(group)
    }

    /// CPU time of all processes that were ever in the group, if it counts that.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        let (file, key, per_second) = self.cpu_file.as_ref()?;
        let text = fs::read_to_string(file).ok()?;
        let figure: f64 = find_field(&text, key)?.trim().parse().ok()?;
        Some(figure / per_second)
    }

    /// Its processes, for the case that the keeper is gone.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        let read = |folder: &PathBuf| fs::read_to_string(folder.join("cgroup.procs")).ok();
        let texts: String = self.dirs.iter().filter_map(read).collect();
        texts.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn limit_memory(&mut self, mounts: &CgroupMounts, name: &str, bytes: u64) -> io::Result<()> {
        let bytes = bytes.to_string();
        // Memory and swap together in version 1, swap alone in version 2.
        let (folder, file, swap_file, swap) = match mounts.version_1("memory") {
            Some(mount) => (
                self.create_v1_group(mount, name)?,
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                &*bytes,
            ),
            None => (
                self.create_v2_group(mounts, name, "memory")?,
                "memory.max",
                "memory.swap.max",
                "0",
            ),
        };
        write_control_file(&folder.join(file), &bytes)?;
        // The file does not exist if swap is not counted.
        let swap_file = folder.join(swap_file);
        match swap_file.exists() {
            true => write_control_file(&swap_file, swap),
            false => Ok(()),
        }
    }

    fn limit_disk(
        &mut self,
        mounts: &CgroupMounts,
        name: &str,
        rate: u64,
        paths: &[&Path],
    ) -> io::Result<()> {
        let disks: BTreeSet<String> = paths.iter().filter_map(|path| disk_of(path)).collect();
        if disks.is_empty() {
            return Err(io::Error::other("its files are not on a disk"));
        }
        let (folder, file, key) = match mounts.version_1("blkio") {
            Some(mount) => (
                self.create_v1_group(mount, name)?,
                "blkio.throttle.read_bps_device",
                "",
            ),
            None => (self.create_v2_group(mounts, name, "io")?, "io.max", "rbps="),
        };
        for disk in disks {
            write_control_file(&folder.join(file), &format!("{disk} {key}{rate}"))?;
        }
        Ok(())
    }

    /// Optional: without it, the time is summed from /proc.
    fn count_cpu(&mut self, mounts: &CgroupMounts, name: &str) {
        // Version 2 counts in every group. Version 1 is used only if the count comes alone, since a
        // group with its own shares would be scheduled differently.
        let found = self.create_v2_group(mounts, name, "");
        if let Ok(folder) = found {
            self.cpu_file = Some((folder.join("cpu.stat"), "usage_usec ", 1e6));
        } else if let Some(mount) = mounts.version_1_alone("cpuacct")
            && let Ok(folder) = self.create_v1_group(mount, name)
        {
            self.cpu_file = Some((folder.join("cpuacct.usage"), "", 1e9));
        }
    }

    /// Creates a group in a version 1 hierarchy: below our own, else at its top.
    fn create_v1_group(&mut self, mount: &CgroupMount, name: &str) -> io::Result<PathBuf> {
        let made = create_group(&mount.own_group, name)
            .or_else(|_| create_group(&mount.mount_point, name))?;
        Ok(self.remember_dir(made))
    }

    /// Creates a group of version 2 with a controller (or none), wherever possible.
    fn create_v2_group(
        &mut self,
        mounts: &CgroupMounts,
        name: &str,
        controller: &str,
    ) -> io::Result<PathBuf> {
        let mount = mounts
            .version_2()
            .ok_or_else(|| io::Error::other("no control groups are mounted for it"))?;
        // A group made for an earlier limit may have the controller already.
        let is_version_2 = |folder: &&PathBuf| folder.starts_with(&mount.mount_point);
        if let Some(made) = self.dirs.iter().find(is_version_2).cloned()
            && (has_controller(&made, controller)
                || enable_controller_below(made.parent().unwrap_or(&made), controller).is_ok())
        {
            return Ok(made);
        }
        let parent = mount.own_group.parent().unwrap_or(&mount.mount_point);
        let mut last = io::Error::other("no suitable parent group");
        // A group with its own processes may delegate no controllers, except for the root.
        for place in [&mount.mount_point, parent, &mount.own_group] {
            if !place.starts_with(&mount.mount_point) {
                continue;
            }
            let tried =
                enable_controller_below(place, controller).and_then(|()| create_group(place, name));
            match tried {
                Ok(made) => return Ok(self.remember_dir(made)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn remember_dir(&mut self, folder: PathBuf) -> PathBuf {
        if !self.dirs.contains(&folder) {
            self.dirs.push(folder.clone());
        }
        folder
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.dirs {
            // The keeper removes them too.
            let _ = fs::remove_dir(folder);
        }
    }
}

fn limit_error(what: &'static str, error: &io::Error) -> DeployError {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => format!(
            "{error}; control groups may be changed by root, or below a delegated group \
             (systemd-run --user --scope -p Delegate=yes ...)"
        ),
        _ => error.to_string(),
    };
    DeployError::CannotLimit { what, why }
}

fn create_group(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = parent.join(name);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(folder),
    }
}

fn has_controller(folder: &Path, controller: &str) -> bool {
    let known = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
    controller.is_empty() || known.split_whitespace().any(|one| one == controller)
}

fn enable_controller_below(parent: &Path, controller: &str) -> io::Result<()> {
    if controller.is_empty() {
        return Ok(());
    }
    if !has_controller(parent, controller) {
        let message = format!("no control group controller `{controller}` here");
        return Err(io::Error::other(message));
    }
    let control = parent.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control)?;
    match enabled.split_whitespace().any(|one| one == controller) {
        true => Ok(()),
        false => write_control_file(&control, &format!("+{controller}")),
    }
}

/// Where control groups are mounted, and which of them contain this process.
struct CgroupMounts(Vec<CgroupMount>);

#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    mount_point: PathBuf,
    own_group: PathBuf,
    /// Controllers of version 1; none for version 2.
    controllers: Vec<String>,
}

impl CgroupMounts {
    fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
    }

    /// proc_pid_mountinfo(5), cgroups(7).
    fn parse(mountinfo: &str, own: &str) -> Self {
        let found = mountinfo.lines().filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let [_, _, _, root, top, ..] = place.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            let [kind, _, options] = kind.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            let controllers: Vec<String> = match kind {
                "cgroup" => options.split(',').map(str::to_owned).collect(),
                "cgroup2" => Vec::new(),
                _ => return None,
            };
            let group = own_group(own, &controllers).unwrap_or("/");
            let below = group.strip_prefix(root.trim_end_matches('/'));
            let below = below.unwrap_or_default().trim_start_matches('/');
            Some(CgroupMount {
                mount_point: top.into(),
                own_group: Path::new(top).join(below),
                controllers,
            })
        });
        Self(found.collect())
    }

    fn version_1(&self, controller: &str) -> Option<&CgroupMount> {
        let has = |mount: &&CgroupMount| mount.controllers.iter().any(|one| one == controller);
        self.0.iter().find(has)
    }

    /// A hierarchy with this controller and no other.
    fn version_1_alone(&self, controller: &str) -> Option<&CgroupMount> {
        let mount = self.version_1(controller)?;
        let comes_with = |one: &String| one == "cpu" || one == "cpuset";
        (!mount.controllers.iter().any(comes_with)).then_some(mount)
    }

    fn version_2(&self) -> Option<&CgroupMount> {
        self.0.iter().find(|mount| mount.controllers.is_empty())
    }
}

/// Our group among lines of `ID:CONTROLLERS:PATH`; version 2 names no controllers there.
fn own_group<'a>(own: &'a str, controllers: &[String]) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        let is_it = match controllers {
            [] => names.is_empty(),
            _ => names
                .split(',')
                .any(|name| controllers.iter().any(|one| one == name)),
        };
        is_it.then_some(path)
    })
}

/// `MAJOR:MINOR` of the whole disk of a path; `None` if there is no disk.
fn disk_of(path: &Path) -> Option<String> {
    let device = path.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let known = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !known.exists() {
        return None;
    }
    // Throttling supports whole disks only; a partition's directory is in that of its disk.
    if known.join("partition").exists() {
        let whole = known.canonicalize().ok()?.parent()?.join("dev");
        return Some(fs::read_to_string(whole).ok()?.trim().to_owned());
    }
    Some(format!("{major}:{minor}"))
}

fn write_control_file(file: &Path, text: &str) -> io::Result<()> {
    fs::write(file, text)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_hierarchies_of_both_versions() {
        let mountinfo = "\
            31 25 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            32 25 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 25 0:30 /box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            34 25 0:31 / /tmp rw - tmpfs tmpfs rw\nbroken\n";
        let own = "4:memory:/a/b\n3:cpu,cpuacct:/\n0::/box/c\n";
        let mounts = CgroupMounts::parse(mountinfo, own);
        let own_of =
            |mount: Option<&CgroupMount>| mount.map(|mount| mount.own_group.display().to_string());
        let memory = own_of(mounts.version_1("memory"));
        assert_eq!(memory.as_deref(), Some("/sys/fs/cgroup/memory/a/b"));
        let unified = own_of(mounts.version_2());
        assert_eq!(unified.as_deref(), Some("/sys/fs/cgroup/unified/c"));
        assert!(mounts.version_1("blkio").is_none());
        assert!(mounts.version_1_alone("cpuacct").is_none());
        assert_eq!(CgroupMounts::parse("", "").0, []);
    }
}
