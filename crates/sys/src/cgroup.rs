//! Resource limits of an application with all its processes: cgroups of version 1 and 2.
//!
//! `penstock` creates them before it gives up root ([`ServerCgroups::make`]); the launcher puts
//! each program into its cgroup before it runs and removes the cgroups at the end; `apps` reads
//! their usage ([`AppCgroup::take_reading`]). They are children of the cgroup that the server was
//! started in.
//!
//! # Invariants
//! - The server is in no application's cgroup. In version 2, where a cgroup with controllers for
//!   its children has no processes of its own, it moves to a child first (`penstock-server`).
//! - A controller that is unavailable is reported by [`ServerCgroups::missing`] and left off,
//!   never half used.
//! - A cgroup belongs to the process that holds the lock on its directory, which the kernel
//!   releases with the process. Cgroups of a killed server, and their processes, are removed by the
//!   next one.

mod location;
mod usage;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::fs::{Access, FlockOperation, Mode, OFlags};
use rustix::process::{Pid, Signal, geteuid, getpid, getppid, kill_process};

use self::location::{CgroupLocation, CgroupVersion, MissingCgroup};
pub use self::usage::{CgroupReading, CgroupUsage};

/// The child for the server, its launcher and programs without a group (version 2).
const SERVER: &str = "penstock-server";

/// Prefix of all other names; the server's pid and the application's index follow, each with a `-`
/// behind it.
const PREFIX: &str = "penstock-";

/// How long the processes of a cgroup may take to end when it is removed.
const END_TIMEOUT: Duration = Duration::from_secs(1);

const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// Period of a CPU quota in microseconds (the kernel's default).
const CPU_PERIOD: u32 = 100_000;

/// A cgroup controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// Processes and threads.
    Tasks,
    /// Memory.
    Memory,
    /// Processors.
    Cpu,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Tasks, Self::Memory, Self::Cpu];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tasks => "pids",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

/// The configured limits of one application.
#[derive(Debug, Clone, PartialEq)]
pub struct AppCgroupLimits {
    /// The application's name.
    pub name: String,
    /// The separate user that its programs run as.
    pub account: Option<String>,
    /// Maximum number of processes and threads.
    pub max_tasks: Option<u64>,
    /// Maximum memory in bytes.
    pub max_memory: Option<u64>,
    /// Maximum number of processors, such as 1.5.
    pub max_cpu: Option<f64>,
    /// Its weight when processors are short, in computing processes.
    pub weight: u32,
}

impl AppCgroupLimits {
    fn wants(&self, controller: Controller) -> bool {
        match controller {
            Controller::Tasks => self.max_tasks.is_some(),
            Controller::Memory => self.max_memory.is_some(),
            Controller::Cpu => self.max_cpu.is_some(),
        }
    }
}

/// An unavailable controller, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingController {
    /// The controller.
    pub controller: Controller,
    /// Why, and what to do about it.
    pub reason: String,
}

/// The cgroups of one server.
#[derive(Debug, Default)]
pub struct ServerCgroups {
    groups: Vec<Arc<AppCgroup>>,
    missing_controllers: Vec<MissingController>,
    _locks: Vec<OwnedFd>,
}

/// The cgroups of one application, one for each hierarchy.
#[derive(Debug, Clone)]
pub struct AppCgroup {
    limits: AppCgroupLimits,
    folders: Vec<Folder>,
    /// The last reading, by any caller. Held while a few numbers are compared.
    last: Arc<Mutex<usage::PreviousReading>>,
    /// The limit of the user's processes, in place of a limit on the cgroup.
    max_user_tasks: Option<u64>,
}

#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    version: CgroupVersion,
    controllers: Vec<Controller>,
}

/// An existing cgroup in which children can be created.
#[derive(Debug)]
struct Parent {
    path: PathBuf,
    version: CgroupVersion,
    controllers: Vec<Controller>,
}

impl ServerCgroups {
    /// Creates a cgroup for each application, and removes those of a killed server. In version 2
    /// this process first moves to a child of its cgroup, whose weight is `server_weight`; the
    /// parent process moves too if it waits for it there (`parent_waits`). Blocks.
    #[must_use]
    pub fn make(plans: &[AppCgroupLimits], server_weight: u32, parent_waits: bool) -> Self {
        let companion = getppid().filter(|_| parent_waits);
        let mut groups: Vec<_> = plans.iter().map(AppCgroup::without_folders).collect();
        let (parents, mut missing) = find_parents(plans);
        let mut locks = Vec::new();
        for mut parent in parents {
            if parent.version == CgroupVersion::V2 {
                missing.extend(parent.enter_child(server_weight, companion));
            }
            if parent.controllers.is_empty() {
                continue;
            }
            parent.remove_abandoned();
            match parent.make_all(plans) {
                Ok((folders, held)) => {
                    locks.extend(held);
                    for (group, folder) in groups.iter_mut().zip(folders) {
                        group.folders.push(folder);
                    }
                }
                Err(error) => {
                    let reason = explain(&parent.path, &error);
                    let lost = parent.controllers.iter().map(|it| missed(*it, &reason));
                    missing.extend(lost);
                }
            }
        }
        if missing.iter().all(|it| it.controller != Controller::Tasks) {
            groups.iter_mut().for_each(|it| it.max_user_tasks = None);
        }
        groups.retain(|it| !it.folders.is_empty() || it.max_user_tasks.is_some());
        Self {
            groups: groups.into_iter().map(Arc::new).collect(),
            missing_controllers: needed_controllers(missing, plans),
            _locks: locks,
        }
    }

    /// What [`ServerCgroups::make`] would miss if this process called it. Changes nothing.
    #[must_use]
    pub fn find_missing_controllers(plans: &[AppCgroupLimits]) -> Vec<MissingController> {
        let (parents, mut missing) = find_parents(plans);
        for parent in parents.iter().filter(|it| it.version == CgroupVersion::V2) {
            missing.extend(parent.occupied());
        }
        needed_controllers(missing, plans)
    }

    /// The controllers that are wanted and unavailable.
    pub fn missing(&self) -> &[MissingController] {
        &self.missing_controllers
    }

    /// The group of an application.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<AppCgroup>> {
        self.groups.iter().find(|group| group.name() == name)
    }

    /// All groups, for the launcher.
    pub fn iter(&self) -> impl Iterator<Item = &AppCgroup> {
        self.groups.iter().map(|group| &**group)
    }
}

impl AppCgroup {
    fn without_folders(limits: &AppCgroupLimits) -> Self {
        Self {
            limits: limits.clone(),
            folders: Vec::new(),
            last: Arc::default(),
            max_user_tasks: limits.max_tasks.filter(|_| limits.account.is_some()),
        }
    }

    /// A group without cgroups.
    #[cfg(test)]
    pub(crate) fn without_cgroups(name: &str, account: Option<&str>) -> Self {
        Self {
            limits: AppCgroupLimits {
                name: name.to_owned(),
                account: account.map(str::to_owned),
                max_tasks: None,
                max_memory: None,
                max_cpu: None,
                weight: 1,
            },
            folders: Vec::new(),
            last: Arc::default(),
            max_user_tasks: None,
        }
    }

    /// The application's name.
    pub fn name(&self) -> &str {
        &self.limits.name
    }

    /// Its configured limits.
    pub fn plan(&self) -> &AppCgroupLimits {
        &self.limits
    }

    /// Whether its programs run as this user; `None` is the server's.
    pub fn is_for_account(&self, account: Option<&str>) -> bool {
        self.limits.account.as_deref() == account
    }

    /// Whether the number of its user's processes is limited in place of the group's.
    pub fn has_user_task_limit(&self) -> bool {
        self.max_user_tasks.is_some()
    }

    /// Moves the calling process, which has one thread, into the group.
    ///
    /// # Errors
    /// The kernel's error; the process may be in some of the hierarchies then.
    pub(crate) fn enter(&self) -> io::Result<()> {
        let enter = |folder: &Folder| write(&folder.path, "cgroup.procs", "0");
        self.folders.iter().try_for_each(enter)
    }

    /// Limits the processes of the user that the calling process has switched to, where the group
    /// has no limit on processes. The kernel counts all processes of the user.
    pub(crate) fn limit_user_tasks(&self) -> io::Result<()> {
        let Some(bound) = self.max_user_tasks else {
            return Ok(());
        };
        let resource = rustix::process::Resource::Nproc;
        let maximum = crate::resource_limits::read_limit(resource)?.maximum;
        let bound = Some(maximum.map_or(bound, |maximum| maximum.min(bound)));
        Ok(rustix::process::setrlimit(
            resource,
            rustix::process::Rlimit {
                current: bound,
                maximum: bound,
            },
        )?)
    }

    /// Kills its remaining processes and removes it. Blocks, a second at most for each hierarchy.
    pub(crate) fn remove(&self) {
        for folder in &self.folders {
            end_and_remove(&folder.path);
        }
    }

    /// Returns the usage, and the events since the last call. Blocks as [`AppCgroup::usage`] does.
    pub fn take_reading(&self) -> CgroupReading {
        let usage = self.usage();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.compare(usage, Instant::now())
    }

    /// Returns the usage of each resource. Reads a few small files in the kernel's memory.
    pub fn usage(&self) -> CgroupUsage {
        let mut usage = CgroupUsage::default();
        for folder in &self.folders {
            for controller in &folder.controllers {
                usage.read(&folder.path, folder.version, *controller);
            }
        }
        usage
    }
}

/// Finds the cgroups in which children can be created, and the missing controllers.
fn find_parents(plans: &[AppCgroupLimits]) -> (Vec<Parent>, Vec<MissingController>) {
    let mut parents: Vec<Parent> = Vec::new();
    let mut missing = Vec::new();
    if plans.is_empty() {
        return (parents, missing);
    }
    // Kernel files: available at once, or not at all.
    let read = |name: &str| read(Path::new("/proc/self"), name);
    let (cgroup, mountinfo) = (read("cgroup"), read("mountinfo"));
    for controller in Controller::ALL {
        // A share of the processors is reserved for the server in any case.
        let is_wanted = plans.iter().any(|limits| limits.wants(controller));
        if !is_wanted && controller != Controller::Cpu {
            continue;
        }
        match find_parent(controller, &cgroup, &mountinfo) {
            Ok((path, version)) => match parents.iter_mut().find(|it| it.path == path) {
                Some(parent) => parent.controllers.push(controller),
                None => parents.push(Parent {
                    path,
                    version,
                    controllers: vec![controller],
                }),
            },
            Err(reason) => missing.push(missed(controller, &reason)),
        }
    }
    (parents, missing)
}

fn find_parent(
    controller: Controller,
    cgroup: &str,
    mountinfo: &str,
) -> Result<(PathBuf, CgroupVersion), String> {
    let name = controller.name();
    let location = location::find_own_cgroup(controller, cgroup, mountinfo);
    let CgroupLocation { version, folders } = location.map_err(|why| match why {
        MissingCgroup::NotInKernel => format!("this kernel has no cgroup controller `{name}`"),
        MissingCgroup::NotMounted => {
            format!("the cgroups of `{name}` are not mounted here, or only above the server's own")
        }
    })?;
    // Only the exact cgroup of this process is used.
    let own = folders.into_iter().find(|folder| has_us(folder));
    let own = own.ok_or_else(|| format!("the server's own cgroup of `{name}` is hidden"))?;
    // A server that follows another one is in that one's child.
    let parent = match (version, own.file_name(), own.parent()) {
        (CgroupVersion::V2, Some(last), Some(parent)) if last == SERVER => parent.to_owned(),
        _ => own,
    };
    if version == CgroupVersion::V2 {
        let has = read(&parent, "cgroup.controllers");
        if !has.split_whitespace().any(|it| it == name) {
            let shown = parent.display();
            return Err(format!(
                "the cgroup {shown} does not have the controller `{name}`: {ADVICE}"
            ));
        }
    }
    let may_write = rustix::fs::access(&parent, Access::WRITE_OK);
    may_write.map_err(|error| explain(&parent, &error.into()))?;
    Ok((parent, version))
}

/// Advice for missing rights.
const ADVICE: &str = "start the server as a service that has it (systemd: `Delegate=yes` and \
                      `ProtectControlGroups=no`)";

fn explain(path: &Path, error: &io::Error) -> String {
    format!("the cgroup {}: {error}: {ADVICE}", path.display())
}

fn missed(controller: Controller, reason: &str) -> MissingController {
    MissingController {
        controller,
        reason: reason.to_owned(),
    }
}

/// Those that an application needs.
fn needed_controllers(
    missing: Vec<MissingController>,
    plans: &[AppCgroupLimits],
) -> Vec<MissingController> {
    let is_wanted = |it: &MissingController| plans.iter().any(|limits| limits.wants(it.controller));
    missing.into_iter().filter(is_wanted).collect()
}

impl Parent {
    /// Moves this process to a child and enables the controllers for children; drops controllers
    /// that cannot be enabled.
    fn enter_child(&mut self, weight: u32, companion: Option<Pid>) -> Vec<MissingController> {
        let child = self.path.join(SERVER);
        let move_to = |path: &Path| {
            write(path, "cgroup.procs", "0")?;
            if let Some(pid) = companion {
                // It may have exited; if it is in the way, that shows below.
                let _ = write(path, "cgroup.procs", &pid.as_raw_nonzero().to_string());
            }
            Ok(())
        };
        let entered = make_folder(&child).and_then(|()| move_to(&child));
        if let Err(error) = entered {
            let reason = explain(&child, &error);
            let lost = std::mem::take(&mut self.controllers);
            return lost.into_iter().map(|it| missed(it, &reason)).collect();
        }
        let mut missing = Vec::new();
        self.controllers.retain(|controller| {
            let word = format!("+{}", controller.name());
            let enabled = write(&self.path, "cgroup.subtree_control", &word);
            let reason = enabled.map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => occupied(&self.path),
                _ => explain(&self.path, &error),
            });
            missing.extend(reason.as_ref().err().map(|it| missed(*controller, it)));
            reason.is_ok()
        });
        if self.controllers.is_empty() {
            // Undoes everything.
            let _ = move_to(&self.path);
            let _ = rustix::fs::rmdir(&child);
        } else {
            // Without the controller there is no such file.
            let _ = write(&child, "cpu.weight", &weight_of_version_2(weight));
        }
        missing
    }

    /// The controllers that cannot be enabled for children because other processes are in the
    /// cgroup.
    fn occupied(&self) -> Vec<MissingController> {
        let enabled = read(&self.path, "cgroup.subtree_control");
        // Only the root of all cgroups has no type, and it may have processes.
        let is_root = !self.path.join("cgroup.type").exists();
        let others = pids(&self.path).any(|pid| pid != Some(getpid()));
        let lost = self.controllers.iter().filter(|controller| {
            let has = enabled.split_whitespace().any(|it| it == controller.name());
            others && !is_root && !has
        });
        lost.map(|it| missed(*it, &occupied(&self.path))).collect()
    }

    /// Removes the cgroups of servers that have exited, and their remaining processes.
    fn remove_abandoned(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_ours = name.to_str().is_some_and(is_of_an_application);
            if is_ours && lock(&entry.path()).is_ok() {
                end_and_remove(&entry.path());
            }
        }
    }

    /// Creates a child for each plan, all or none.
    fn make_all(&self, plans: &[AppCgroupLimits]) -> io::Result<(Vec<Folder>, Vec<OwnedFd>)> {
        let mut folders = Vec::new();
        let mut locks = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            let made = self.make_one(index, plan, &mut locks);
            match made {
                Ok(folder) => folders.push(folder),
                Err(error) => {
                    drop(locks);
                    (folders.iter()).for_each(|folder| end_and_remove(&folder.path));
                    return Err(error);
                }
            }
        }
        Ok((folders, locks))
    }

    fn make_one(
        &self,
        index: usize,
        plan: &AppCgroupLimits,
        locks: &mut Vec<OwnedFd>,
    ) -> io::Result<Folder> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let shown: String = plan
            .name
            .chars()
            .filter(|c| is_plain(*c))
            .take(64)
            .collect();
        let pid = std::process::id();
        let path = self.path.join(format!("{PREFIX}{pid}-{index}-{shown}"));
        make_folder(&path)?;
        locks.push(lock(&path)?);
        let folder = Folder {
            path,
            version: self.version,
            controllers: self.controllers.clone(),
        };
        let bounded = folder.bound(plan);
        if bounded.is_err() {
            end_and_remove(&folder.path);
        }
        bounded.map(|()| folder)
    }
}

impl Folder {
    fn bound(&self, plan: &AppCgroupLimits) -> io::Result<()> {
        for controller in &self.controllers {
            match (controller, self.version) {
                (Controller::Tasks, _) => self.set("pids.max", plan.max_tasks)?,
                (Controller::Memory, CgroupVersion::V1) => {
                    self.set("memory.limit_in_bytes", plan.max_memory)?;
                    // Includes swap, where that is counted.
                    self.set_if_there("memory.memsw.limit_in_bytes", plan.max_memory)?;
                }
                (Controller::Memory, CgroupVersion::V2) => {
                    self.set("memory.max", plan.max_memory)?;
                    self.set_if_there("memory.swap.max", plan.max_memory.map(|_| 0))?;
                }
                (Controller::Cpu, version) => self.bound_cpu(version, plan)?,
            }
        }
        Ok(())
    }

    fn bound_cpu(&self, version: CgroupVersion, plan: &AppCgroupLimits) -> io::Result<()> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a product of small positive numbers, rounded"
        )]
        let quota = (plan.max_cpu).map(|cpu| (cpu * f64::from(CPU_PERIOD)).round().max(1e3) as u64);
        match version {
            CgroupVersion::V1 => {
                let shares = u64::from(plan.weight.clamp(1, 256)) * 1024;
                write(&self.path, "cpu.shares", &shares.to_string())?;
                // Without a limit the kernel may have no such files.
                let period = quota.map(|_| u64::from(CPU_PERIOD));
                self.set("cpu.cfs_period_us", period)?;
                self.set("cpu.cfs_quota_us", quota)
            }
            CgroupVersion::V2 => {
                let weight = weight_of_version_2(plan.weight);
                write(&self.path, "cpu.weight", &weight)?;
                let Some(quota) = quota else { return Ok(()) };
                write(&self.path, "cpu.max", &format!("{quota} {CPU_PERIOD}"))
            }
        }
    }

    fn set(&self, file: &str, value: Option<u64>) -> io::Result<()> {
        value.map_or(Ok(()), |value| write(&self.path, file, &value.to_string()))
    }

    fn set_if_there(&self, file: &str, value: Option<u64>) -> io::Result<()> {
        match self.set(file, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            set => set,
        }
    }
}

/// A computing process has 100, as it has outside of cgroups.
fn weight_of_version_2(weight: u32) -> String {
    weight.clamp(1, 100).saturating_mul(100).to_string()
}

fn occupied(path: &Path) -> String {
    let shown = path.display();
    format!("other programs than the server are in the cgroup {shown}: {ADVICE}")
}

/// Whether the name is that of an application's cgroup, of this server or another.
fn is_of_an_application(name: &str) -> bool {
    let mut parts = name.strip_prefix(PREFIX).unwrap_or_default().splitn(3, '-');
    let mut is_number = || {
        let part = parts.next().unwrap_or_default();
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    is_number() && is_number() && parts.next().is_some()
}

/// Others may access entries by name but not open the directory: opening would allow them to lock
/// it.
fn make_folder(path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o711);
    match rustix::fs::mkdir(path, mode) {
        Err(rustix::io::Errno::EXIST) => {}
        made => made?,
    }
    // Set explicitly, whatever the umask: the server reads its files as another user.
    Ok(rustix::fs::chmod(path, mode)?)
}

/// Locks a directory that no server holds.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    let (ours, there) = (rustix::fs::fstat(&folder)?, rustix::fs::stat(path)?);
    if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino)
        || ours.st_uid != geteuid().as_raw()
    {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(folder)
}

/// Kills the processes of a cgroup and removes it. After a second it is left.
fn end_and_remove(path: &Path) {
    let deadline = Instant::now() + END_TIMEOUT;
    // With the controller, no process can escape by forking.
    let _ = write(path, "pids.max", "0");
    // In version 2 (Linux 5.14) all end at once, also those that are being forked.
    if !has_us(path) {
        let _ = write(path, "cgroup.kill", "1");
    }
    while let Err(rustix::io::Errno::BUSY) = rustix::fs::rmdir(path) {
        if Instant::now() > deadline {
            return;
        }
        for pid in pids(path).flatten().filter(|pid| *pid != getpid()) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        // A plain delay.
        let _ = poll(&mut [], Some(&PAUSE));
    }
}

/// Whether this process is in a cgroup.
fn has_us(path: &Path) -> bool {
    pids(path).any(|pid| pid == Some(getpid()))
}

/// The processes of a cgroup; `None` for each outside of this pid namespace.
fn pids(path: &Path) -> impl Iterator<Item = Option<Pid>> + use<> {
    let text = read(path, "cgroup.procs");
    let numbers: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    numbers.into_iter().map(Pid::from_raw)
}

#[expect(
    clippy::disallowed_methods,
    reason = "files of the kernel's memory; callers on a loop use a pool"
)]
fn read(path: &Path, file: &str) -> String {
    // A missing file counts as empty.
    let bytes = std::fs::read(path.join(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn write(path: &Path, file: &str, text: &str) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(path.join(file))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests;
