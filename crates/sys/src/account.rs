//! Users and groups: look-up, switching the process to another user for good, and the umask.
//!
//! Used by `penstock` at the start, between opening sockets and starting applications. The calls of
//! the C library change every thread of the process; the system calls themselves would change one.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;

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
    ///
    /// # Errors
    /// As [`switch_user`].
    pub fn switch_to(&self) -> io::Result<()> {
        switch_user(&self.user, self.gid)
    }

    /// Like [`Self::switch_to`], but the calling thread, and threads that it starts later, keep the
    /// right to signal processes of other users (`CAP_KILL`), and no other right.
    ///
    /// # Errors
    /// As [`switch_user`], and those of `prctl` and `capset`.
    pub fn switch_to_keeping_kill(&self) -> io::Result<()> {
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
    #[must_use]
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

const ENTRY_BYTES: usize = 64 * 1024;

/// Looks a user up by name or, if the text is digits, by uid (which needs no entry). `None` if
/// there is no such name. Blocks: it may read files or query a directory service.
///
/// # Errors
/// Those of the look-up.
pub fn find_user(text: &str) -> io::Result<Option<User>> {
    let name = CString::new(text).map_err(io::Error::other)?;
    let number = text.parse::<u32>().ok();
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut space = vec![0 as libc::c_char; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    #[expect(unsafe_code, reason = "no safe wrapper offers these look-ups")]
    // SAFETY: all pointers are valid for the call, and the length is that of the space.
    let error = unsafe {
        let (entry, space, found) = (entry.as_mut_ptr(), space.as_mut_ptr(), &raw mut found);
        match number {
            Some(number) => libc::getpwuid_r(number, entry, space, ENTRY_BYTES, found),
            None => libc::getpwnam_r(name.as_ptr(), entry, space, ENTRY_BYTES, found),
        }
    };
    if found.is_null() {
        return match (error, number) {
            (0, None) | (libc::ENOENT | libc::ESRCH, None) => Ok(None),
            (_, Some(uid)) => Ok(Some(User {
                name: None,
                uid,
                gid: None,
                home: None,
            })),
            (error, None) => Err(io::Error::from_raw_os_error(error)),
        };
    }
    #[expect(unsafe_code, reason = "no safe wrapper offers these look-ups")]
    // SAFETY: the call reported that it filled the entry, whose strings lie in `space`, which is
    // alive; both end with a zero.
    let (entry, name, home) = unsafe {
        let entry = entry.assume_init();
        (
            entry,
            CStr::from_ptr(entry.pw_name),
            CStr::from_ptr(entry.pw_dir),
        )
    };
    Ok(Some(User {
        name: Some(name.to_string_lossy().into_owned()),
        uid: entry.pw_uid,
        gid: Some(entry.pw_gid),
        home: Some(home.to_string_lossy().into_owned()),
    }))
}

/// Looks a group's id up by name; digits are the id. `None` if there is no such name. Blocks as
/// [`find_user`] does.
///
/// # Errors
/// Those of the look-up.
pub fn find_group_id(text: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok(Some(number));
    }
    let name = CString::new(text).map_err(io::Error::other)?;
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut space = vec![0 as libc::c_char; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    #[expect(unsafe_code, reason = "no safe wrapper offers these look-ups")]
    // SAFETY: all pointers are valid for the call, and the length is that of the space.
    let error = unsafe {
        let (entry, space, found) = (entry.as_mut_ptr(), space.as_mut_ptr(), &raw mut found);
        libc::getgrnam_r(name.as_ptr(), entry, space, ENTRY_BYTES, found)
    };
    if found.is_null() {
        return match error {
            0 | libc::ENOENT | libc::ESRCH => Ok(None),
            error => Err(io::Error::from_raw_os_error(error)),
        };
    }
    #[expect(unsafe_code, reason = "no safe wrapper offers these look-ups")]
    // SAFETY: the call reported that it filled the entry.
    let gid = unsafe { entry.assume_init().gr_gid };
    Ok(Some(gid))
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
    let name = user.name.as_deref().map(CString::new).transpose();
    let name = name.map_err(io::Error::other)?;
    #[expect(unsafe_code, reason = "the calls that change all threads")]
    // SAFETY: numbers and a text with its end; no memory is written.
    let done = unsafe {
        let groups = match &name {
            Some(name) => libc::initgroups(name.as_ptr(), gid),
            None => libc::setgroups(1, &raw const gid),
        };
        groups == 0
            && libc::setresgid(gid, gid, gid) == 0
            && libc::setresuid(user.uid, user.uid, user.uid) == 0
    };
    if !done {
        return Err(io::Error::last_os_error());
    }
    if user.uid != 0 && can_regain_root() {
        return Err(io::Error::other("the process could become root again"));
    }
    Ok(())
}

fn can_regain_root() -> bool {
    #[expect(unsafe_code, reason = "the call that changes all threads")]
    // SAFETY: a number.
    let done = unsafe { libc::setuid(0) };
    done == 0
}

/// Checks that this process, with its present user, may create files in a directory.
///
/// # Errors
/// Why not.
pub fn check_dir_writable(folder: &std::path::Path) -> io::Result<()> {
    use rustix::fs::Access;
    check_access(folder, Access::WRITE_OK | Access::EXEC_OK)
}

/// Checks that this process, with its present user, may read a file.
///
/// # Errors
/// Why not.
pub fn check_file_readable(file: &std::path::Path) -> io::Result<()> {
    check_access(file, rustix::fs::Access::READ_OK)
}

/// Checks that this process, with its present user, may enter a directory.
///
/// # Errors
/// Why not.
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

/// Changes the owner of a Unix socket's file: of that file only, even if its path is replaced
/// meanwhile.
///
/// # Errors
/// There is no socket, or those of `fchownat`.
pub fn chown_socket(path: &std::path::Path, uid: u32, gid: u32) -> io::Result<()> {
    let access = crate::net::SocketAccess {
        mode: None,
        user: Some(uid),
        group: Some(gid),
    };
    crate::net::set_socket_access(path, access)
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
    fn only_the_socket_itself_is_chowned() {
        use std::os::unix::fs::MetadataExt;
        let name = format!("penstock-given-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("it.sock");
        let _socket = crate::net::listen_unix(&path, Default::default()).unwrap();
        // To its present owner: any process may do that.
        let (uid, gid) = effective_ids();
        chown_socket(&path, uid, gid).unwrap();
        if uid == 0 {
            chown_socket(&path, 12345, 12346).unwrap();
            let about = std::fs::metadata(&path).unwrap();
            assert_eq!((about.uid(), about.gid()), (12345, 12346));
        }
        let other = folder.join("other");
        std::fs::File::create(&other).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(chown_socket(&path, uid, gid).is_err(), "a link");
        assert!(chown_socket(&other, uid, gid).is_err(), "a file");
        std::fs::remove_dir_all(folder).unwrap();
    }

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
