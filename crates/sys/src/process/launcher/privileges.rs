//! What a launcher with root's rights may do with them.
//!
//! The server that asks it has given its own rights up, and may be in wrong hands.
//!
//! # Invariants
//!
//! - Without an application that has a user of its own the launcher has no rights to lose.
//! - Root's rights go to one program: the next server, as this one was started, from a file that
//!   nobody but root can have put there.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::order::{Lifetime, Order};
use super::{Command, Privileges};
use crate::identity::Account;
use crate::isolation;

/// Bits of a file's mode with which others than its owner may write it.
const OTHERS_WRITE: u32 = 0o022;

/// The bit of a folder in which files can be replaced by their owners only.
const STICKY: u32 = 0o1000;

impl Privileges {
    fn are_kept(&self) -> bool {
        !self.accounts.is_empty()
    }

    /// Becomes the server's user if there is no other one.
    pub(super) fn give_up(&self) -> io::Result<()> {
        match &self.server {
            Some(server) if !self.are_kept() => server.assume()?,
            _ => {}
        }
        // Another user may look into it until then.
        isolation::deny_inspection()
    }

    /// Whom a program runs as; `None` is whoever the launcher is. Of the next server the program becomes the
    /// file that was looked at, whatever links led there.
    ///
    /// # Errors
    /// Why it may not be started.
    pub(super) fn account_for(&self, order: &mut Order) -> io::Result<Option<&Account>> {
        match (&order.account, order.lifetime) {
            (Some(name), Lifetime::OfServer) => {
                let account = self.accounts.iter().find(|account| account.name == *name);
                let unknown = || {
                    io::Error::other(format!(
                        "`{name}` was no user of an application when the server was started: \
                         restart the server"
                    ))
                };
                account.map(Some).ok_or_else(unknown)
            }
            (_, Lifetime::OfItsOwn) if self.are_kept() => {
                order.program = self.check_successor(order)?.into();
                Ok(None)
            }
            _ if self.are_kept() => Ok(self.server.as_ref()),
            _ => Ok(None),
        }
    }

    /// That an order is for the next server, as this one was started.
    fn check_successor(&self, order: &Order) -> io::Result<PathBuf> {
        // The last variable tells the socket's number, which is the server's to say.
        let own = order.env.split_last().map_or(&[][..], |(_, rest)| rest);
        let is_same = |command: &Command| {
            let lines = (
                command.program.as_os_str(),
                &*command.program,
                &*command.args,
            );
            lines == (&*order.program, Path::new(&order.arg0), &*order.args)
                && command.dir == order.dir
                && command.env == own
        };
        if !self.successor.as_ref().is_some_and(is_same) {
            return Err(io::Error::other(
                "with users of their own for applications, an upgrade starts the program that runs \
                 here, as it was started: put the new version in its place",
            ));
        }
        check_owner(Path::new(&order.program))
    }
}

/// The file behind all links, if nobody but root can have put it there.
fn check_owner(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    for part in path.ancestors() {
        let about = part.symlink_metadata()?;
        let is_writable = about.mode() & OTHERS_WRITE != 0;
        let is_shared_folder = about.is_dir() && about.mode() & STICKY != 0;
        if about.uid() != 0 || (is_writable && !is_shared_folder) {
            return Err(io::Error::other(format!(
                "{}: others than root may change it, so it is not started as root: \
                 chown it to root and take the right to write from others",
                part.display()
            )));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::User;

    fn account(name: &str) -> Account {
        Account {
            name: name.to_owned(),
            user: User {
                name: None,
                uid: 12345,
                gid: None,
                home: None,
            },
            gid: 12345,
        }
    }

    fn command() -> Command {
        Command {
            program: "/bin/sh".into(),
            args: vec!["serve".into()],
            dir: "/".into(),
            env: vec![("NOTIFY_SOCKET".into(), "@s".into())],
        }
    }

    fn order(account: Option<&str>, lifetime: Lifetime) -> Order {
        let Command {
            program,
            args,
            dir,
            mut env,
        } = command();
        env.push(("SOCKET".into(), "9".into()));
        Order {
            program: program.clone().into(),
            arg0: program.into(),
            args,
            dir,
            env,
            numbers: Vec::new(),
            lifetime,
            sandbox: None,
            account: account.map(str::to_owned),
        }
    }

    fn privileges(accounts: &[&str]) -> Privileges {
        Privileges {
            server: Some(account("server")),
            accounts: accounts.iter().map(|name| account(name)).collect(),
            successor: Some(command()),
        }
    }

    #[test]
    fn programs_run_as_users_of_the_list_or_as_the_server() {
        let many = privileges(&["shop", "blog"]);
        let whom = |name| {
            let account = many.account_for(&mut order(name, Lifetime::OfServer));
            account.map(|account| account.map(|account| account.name.clone()))
        };
        assert_eq!(whom(Some("blog")).unwrap().as_deref(), Some("blog"));
        assert_eq!(whom(None).unwrap().as_deref(), Some("server"));
        let unknown = whom(Some("root")).unwrap_err().to_string();
        assert!(unknown.contains("restart"), "{unknown}");
        // Who has no rights is the server's user already.
        let none = privileges(&[]);
        assert_eq!(
            none.account_for(&mut order(None, Lifetime::OfServer))
                .unwrap(),
            None
        );
        assert!(
            none.account_for(&mut order(Some("shop"), Lifetime::OfServer))
                .is_err()
        );
        let any = none.account_for(&mut order(None, Lifetime::OfItsOwn));
        assert_eq!(any.unwrap(), None);
    }

    #[test]
    fn rights_of_root_go_to_the_next_server_and_to_nothing_else() {
        let many = privileges(&["shop"]);
        let mut good = order(None, Lifetime::OfItsOwn);
        let is_started = |order: &mut Order| many.account_for(order).is_ok();
        assert!(is_started(&mut good));
        let real = Path::new("/bin/sh").canonicalize().unwrap();
        assert_eq!(good.program, real.into_os_string());
        let changes: [fn(&mut Order); 6] = [
            |order| order.program = "/bin/ls".into(),
            |order| order.arg0 = "ls".into(),
            |order| order.args.push("-c".into()),
            |order| order.dir = "/tmp".into(),
            |order| order.env.push(("LD_PRELOAD".into(), "/tmp/x.so".into())),
            |order| order.env.clear(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = order(None, Lifetime::OfItsOwn);
            change(&mut changed);
            assert!(!is_started(&mut changed), "change {number}");
        }
    }

    #[test]
    fn a_program_that_others_may_change_is_found() {
        check_owner(Path::new("/bin/sh")).unwrap();
        let folder = std::env::temp_dir().join(format!("penstock-owner-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("program");
        std::fs::write(&path, "").unwrap();
        let is_root = crate::identity::current().0 == 0;
        assert_eq!(check_owner(&path).is_ok(), is_root);
        use std::os::unix::fs::PermissionsExt;
        for changed in [&path, &folder] {
            let before = std::fs::metadata(changed).unwrap().permissions();
            std::fs::set_permissions(changed, std::fs::Permissions::from_mode(0o777)).unwrap();
            let error = check_owner(&path).unwrap_err().to_string();
            assert!(
                error.contains(changed.to_str().unwrap()) || !is_root,
                "{error}"
            );
            std::fs::set_permissions(changed, before).unwrap();
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
