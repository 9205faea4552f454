//! Users and groups: look-up, switching the process to another user for good, and the umask.
//!
//! Used by `penstock` at the start, between opening sockets and starting applications. The calls of
//! the C library change every thread of the process; the system calls themselves would change one.

use std::ffi::CString;
use std::io;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// A user of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name, if it has an entry.
    pub name: Option<String>,
    /// Its id.
    pub uid: u32,
    /// Its primary group, if it has an entry.
    pub gid: Option<u32>,
    /// Its home directory, if it has an entry.
    pub home: Option<String>,
}

/// A user and a group that programs run as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name in the configuration, which launch orders use.
    pub name: String,
    /// The user.
    pub user: User,
    /// Its group.
    pub gid: u32,
}

impl Account {
    /// Switches the whole process to the user, for good ([`switch_user`]).
    pub fn switch_to(&self) -> io::Result<()> {
        switch_user(&self.user, self.gid)
    }

    /// Like [`Self::switch_to`], but the calling thread, and threads that it starts later, keep the
    /// right to signal processes of other users (`CAP_KILL`), and no other right.
    ///
    /// # Errors
    /// As [`switch_user`], and those of `prctl` and `capset`.
    pub fn switch_to_keeping_cap_kill(&self) -> io::Result<()> {
        rustix::thread::set_keep_capabilities(true)?;
        self.switch_to()?;
        let kill = CapabilitySet::KILL;
        let kept = CapabilitySets {
            effective: kill,
            permitted: kill,
            inheritable: CapabilitySet::empty(),
        };
        Ok(rustix::thread::set_capabilities(None, kept)?)
    }

    /// Environment variables that describe the user to programs.
    pub fn env_vars(&self) -> Vec<(&'static str, String)> {
        let (name, home) = (&self.user.name, &self.user.home);
        let user = name
            .iter()
            .flat_map(|name| [("USER", name), ("LOGNAME", name)]);
        let home = home.iter().map(|home| ("HOME", home));
        user.chain(home)
            .map(|(key, value)| (key, value.clone()))
            .collect()
    }
}

/// Whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Looks a user up by name or, if the text is digits, by uid (which needs no entry). `None` if
/// there is no such name. Blocks: it may read files or query a directory service.
pub fn find_user(text: &str) -> io::Result<Option<User>> {
    let uid = text.parse::<u32>().ok();
    let found = match uid {
        Some(uid) => nix::unistd::User::from_uid(Uid::from_raw(uid)),
        None => nix::unistd::User::from_name(text),
    };
    match (found, uid) {
        (Ok(Some(entry)), _) => Ok(Some(User {
            name: Some(entry.name),
            uid: entry.uid.as_raw(),
            gid: Some(entry.gid.as_raw()),
            home: Some(entry.dir.to_string_lossy().into_owned()),
        })),
        (_, Some(uid)) => Ok(Some(User {
            name: None,
            uid,
            gid: None,
            home: None,
        })),
        (Ok(None) | Err(Errno::ENOENT | Errno::ESRCH), None) => Ok(None),
        (Err(error), None) => Err(error.into()),
    }
}

/// Looks a group's id up by name; digits are the id. `None` if there is no such name. Blocks as
/// [`find_user`] does.
pub fn find_group_id(text: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok(Some(number));
    }
    match nix::unistd::Group::from_name(text) {
        Ok(found) => Ok(found.map(|group| group.gid.as_raw())),
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The effective user and group of this process.
#[must_use]
pub fn effective_ids() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Switches the whole process to the user, to `gid` and, for a user with a name, to its
/// supplementary groups; otherwise to no other group. This is irreversible.
///
/// # Errors
/// Those of the calls, `PermissionDenied` for a process that is not root; or that root could be
/// regained. The process may be half changed and must end.
pub fn switch_user(user: &User, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(gid));
    match &user.name {
        Some(name) => nix::unistd::initgroups(&CString::new(name.as_str())?, gid)?,
        None => nix::unistd::setgroups(&[gid])?,
    }
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)?;
    if !uid.is_root() && nix::unistd::setuid(Uid::from_raw(0)).is_ok() {
        return Err(io::Error::other("the process could become root again"));
    }
    Ok(())
}

/// Checks that this process, with its present user, may create files in a directory.
pub fn check_dir_writable(folder: &std::path::Path) -> io::Result<()> {
    use rustix::fs::Access;
    check_access(folder, Access::WRITE_OK | Access::EXEC_OK)
}

/// Checks that this process, with its present user, may read a file.
pub fn check_file_readable(file: &std::path::Path) -> io::Result<()> {
    check_access(file, rustix::fs::Access::READ_OK)
}

/// Checks that this process, with its present user, may enter a directory.
pub fn check_dir_enterable(folder: &std::path::Path) -> io::Result<()> {
    check_access(folder, rustix::fs::Access::EXEC_OK)
}

/// Checks as the effective user. A sandbox may forbid the call for that (`faccessat2`, Linux 5.8);
/// the older one checks as the real user, which is the same in a process that has switched users
/// for good.
fn check_access(path: &std::path::Path, access: rustix::fs::Access) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    match rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS) {
        Err(rustix::io::Errno::PERM) => {
            Ok(rustix::fs::accessat(CWD, path, access, AtFlags::empty())?)
        }
        asked => Ok(asked?),
    }
}

/// Sets the limit of open descriptors for this process and processes that it starts later.
///
/// # Errors
/// Those of `setrlimit`, `PermissionDenied` if a process that is not root exceeds its hard limit.
pub fn set_max_open_files(count: u64) -> io::Result<()> {
    let known = crate::resource_limits::read_limit(Resource::Nofile)?;
    let limit = Rlimit {
        current: Some(count),
        maximum: known.maximum.map(|maximum| maximum.max(count)),
    };
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}

/// Sets the umask; returns the previous one.
pub fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask)).as_raw_mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        let root = find_user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, Some(0)));
        assert_eq!(find_user("0").unwrap().unwrap(), root);
        assert_eq!(find_user("no-such-user-here").unwrap(), None);
        let numbered = find_user("4000000").unwrap().unwrap();
        assert_eq!((numbered.name, numbered.uid), (None, 4_000_000));
        assert_eq!(find_group_id("root").unwrap(), Some(0));
        assert_eq!(find_group_id("4000000").unwrap(), Some(4_000_000));
        assert_eq!(find_group_id("no-such-group-here").unwrap(), None);
    }
}
