//! Limits what a launcher with root's rights does with them.
//!
//! The server that sends orders has given up its rights, and may be compromised.
//!
//! # Invariants
//!
//! - Without an application that has its own user or group the launcher keeps no rights.
//! - The groups are those of the start. An application's user that has one starts nothing outside
//!   of it; the server's user may, as the server itself is in none.
//! - The next server is started as this one was, with any rights: only a launcher without root's
//!   rights accepts another program for it, from a file that no application can have put there.
//! - Root's rights go to that one program, from a file that only root can have put there.

use std::ffi::OsString;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;

use super::launch_order::{LaunchOrder, ProcessLifetime};
use super::{CommandLine, Privileges};
use crate::account::Account;
use crate::cgroup::AppCgroup;
use crate::isolation::{self, AccessRules, Sandbox};
use crate::kernel;
use crate::trusted_program::{self, TrustedOwners, TrustedProgram};

impl Privileges {
    fn keeps_root(&self) -> bool {
        // Groups alone keep no rights if the server does not switch users: it has the same ones.
        !self.accounts.is_empty() || self.server.is_some() && !self.groups.is_empty()
    }

    /// Switches to the server's user if there is no other one.
    pub(super) fn drop_root(&self) -> io::Result<()> {
        match &self.server {
            Some(server) if !self.keeps_root() => server.switch_to()?,
            _ => {}
        }
        // Another user may inspect it until then.
        isolation::deny_inspection()
    }

    /// Checks whether an order may be carried out, and limits it to what is allowed. Returns the
    /// user that its program runs as; `None` is the launcher's own.
    pub(super) fn authorize(
        &self,
        order: &mut LaunchOrder,
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<Option<&Account>> {
        if order.lifetime == ProcessLifetime::Independent {
            if let Some(program) = self.check_successor(order)? {
                use_checked_program(order, descriptors, program);
            }
            return Ok(None);
        }
        self.enforce_sandbox(order)?;
        let Some(name) = &order.account else {
            return Ok(self.server.as_ref().filter(|_| self.keeps_root()));
        };
        let account = self.accounts.iter().find(|account| account.name == *name);
        account.map(Some).ok_or_else(|| {
            io::Error::other(format!(
                "`{name}` was no user of an application when the server was started: restart the \
                 server"
            ))
        })
    }

    /// Returns the group that an order's program is put into.
    ///
    /// # Errors
    /// The group is not that of this user, or the user's programs must not run outside of one.
    pub(super) fn find_group(&self, order: &LaunchOrder) -> io::Result<Option<&AppCgroup>> {
        if order.lifetime == ProcessLifetime::Independent {
            return Ok(None);
        }
        let account = order.account.as_deref();
        let mut groups = self
            .groups
            .iter()
            .filter(|group| group.is_for_account(account));
        let found = match &order.group {
            Some(name) => groups.find(|group| group.name() == name),
            // A reload may add an application of the server's user, and that has no limits.
            None if account.is_none() || groups.next().is_none() => return Ok(None),
            None => None,
        };
        found.map(Some).ok_or_else(|| {
            io::Error::other(
                "its application had no bounds when the server was started: restart the server",
            )
        })
    }

    /// Applies every part of the sandbox that this kernel supports, whatever parts the order has.
    fn enforce_sandbox(&self, order: &mut LaunchOrder) -> io::Result<()> {
        match order.sandbox {
            Some(_) => order.sandbox = Some(Sandbox::available()),
            None if self.unconfined.contains(&order.account) => {}
            None => {
                return Err(io::Error::other(
                    "no application had `isolation = false` when the server was started: restart the \
                     server",
                ));
            }
        }
        Ok(())
    }

    /// Checks that an order is exactly the one for the next server. Returns the program to start
    /// instead of its path; `None` if that is the running program.
    fn check_successor(&self, order: &LaunchOrder) -> io::Result<Option<TrustedProgram>> {
        let Some((known, _)) = self
            .successor
            .as_ref()
            .filter(|known| is_successor(order, known))
        else {
            return Err(io::Error::other(
                "an upgrade starts the next server as this one was started, and nothing else: \
                 restart the server",
            ));
        };
        let path = Path::new(&order.program);
        let is_known = known.program == path;
        if !self.keeps_root() {
            // Its path was not checked when this server was started either.
            if is_known {
                return Ok(None);
            }
            // An application may run as the user that the server has switched to.
            let owners = match self.server {
                Some(_) => TrustedOwners::Root,
                None => TrustedOwners::RootAndOwn,
            };
            let program = trusted_program::check_program(path, owners);
            return program.map(Some).map_err(io::Error::other);
        }
        if !is_known {
            return Err(io::Error::other(
                "with users of their own for applications, an upgrade starts the program that runs \
                 here, as it was started: put the new version in its place",
            ));
        }
        let program = trusted_program::check_program(path, TrustedOwners::Root);
        program.map(Some).map_err(|why| {
            io::Error::other(format!(
                "{why}, so it is not started as root: chown it to root, and take the right to write \
                 from others"
            ))
        })
    }
}

/// Whether an order is for the next server, whatever its program: the same command line, and
/// nothing that only applications have.
fn is_successor(order: &LaunchOrder, (command, variable): &(CommandLine, OsString)) -> bool {
    let LaunchOrder {
        program,
        arg0,
        args,
        dir,
        env,
        fd_numbers: numbers,
        lifetime,
        sandbox,
        access,
        account,
        group,
        app,
    } = order;
    let Some(((name, value), env)) = env.split_last() else {
        return false;
    };
    let socket = value.to_str().and_then(|value| value.parse().ok());
    *lifetime == ProcessLifetime::Independent
        // A server starts the next one by the name that it was given itself.
        && program == arg0
        && *args == command.args
        && command.dir == *dir
        && env == command.env
        && name == variable
        && socket.is_some_and(|socket: RawFd| *numbers == [1, 2, socket])
        && (sandbox, account, group) == (&None, &None, &None)
        && *access == AccessRules::default()
        && app.is_empty()
}

/// Starts the very file that was checked. Without /proc, where a descriptor has no path, it is the
/// path, all of which is root's.
fn use_checked_program(
    order: &mut LaunchOrder,
    descriptors: &mut Vec<OwnedFd>,
    program: TrustedProgram,
) {
    if !kernel::has_proc() {
        order.program = program.path.into();
        return;
    }
    let number = order
        .fd_numbers
        .iter()
        .max()
        .map_or(3, |highest| highest + 1);
    order.program = format!("/proc/self/fd/{number}").into();
    order.fd_numbers.push(number);
    descriptors.push(program.file);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::User;

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

    fn command() -> CommandLine {
        CommandLine {
            program: "/bin/sh".into(),
            args: vec!["serve".into()],
            dir: "/".into(),
            env: vec![("NOTIFY_SOCKET".into(), "@s".into())],
        }
    }

    fn order(account: Option<&str>, lifetime: ProcessLifetime) -> LaunchOrder {
        let CommandLine {
            program,
            args,
            dir,
            mut env,
        } = command();
        env.push(("SOCKET".into(), "9".into()));
        LaunchOrder {
            program: program.clone().into(),
            arg0: program.into(),
            args,
            dir: dir.into(),
            env,
            fd_numbers: vec![1, 2, 9],
            lifetime,
            sandbox: None,
            access: AccessRules::default(),
            account: account.map(str::to_owned),
            group: None,
            app: match lifetime {
                ProcessLifetime::WithServer => "web".to_owned(),
                ProcessLifetime::Independent => String::new(),
            },
        }
    }

    fn privileges(accounts: &[&str]) -> Privileges {
        Privileges {
            server: Some(account("server")),
            accounts: accounts.iter().map(|name| account(name)).collect(),
            successor: Some((command(), "SOCKET".into())),
            unconfined: vec![Some("blog".to_owned())],
            groups: Vec::new(),
        }
    }

    fn permit(privileges: &Privileges, order: &mut LaunchOrder) -> io::Result<Option<String>> {
        let account = privileges.authorize(order, &mut Vec::new())?;
        Ok(account.map(|account| account.name.clone()))
    }

    fn confined(name: Option<&str>) -> LaunchOrder {
        LaunchOrder {
            sandbox: Some(Sandbox::available()),
            ..order(name, ProcessLifetime::WithServer)
        }
    }

    #[test]
    fn programs_run_as_listed_users_or_the_server() {
        let many = privileges(&["shop", "blog"]);
        let whom = |name| permit(&many, &mut confined(name));
        assert_eq!(whom(Some("blog")).unwrap().as_deref(), Some("blog"));
        assert_eq!(whom(None).unwrap().as_deref(), Some("server"));
        let unknown = whom(Some("root")).unwrap_err().to_string();
        assert!(unknown.contains("restart"), "{unknown}");
        // A launcher without rights is the server's user already.
        let none = privileges(&[]);
        assert_eq!(permit(&none, &mut confined(None)).unwrap(), None);
        assert!(permit(&none, &mut confined(Some("shop"))).is_err());
    }

    #[test]
    fn only_listed_programs_are_unconfined() {
        let many = privileges(&["shop", "blog"]);
        for (name, is_permitted) in [(None, false), (Some("shop"), false), (Some("blog"), true)] {
            let permitted = permit(&many, &mut order(name, ProcessLifetime::WithServer));
            assert_eq!(permitted.is_ok(), is_permitted, "{name:?}");
        }
        // Parts that an order leaves out are applied all the same.
        let mut partial = confined(None);
        permit(&many, &mut partial).unwrap();
        assert_eq!(partial.sandbox, Some(Sandbox::available()));
    }

    #[test]
    fn programs_are_put_into_the_group_of_their_application_and_no_other() {
        let mut many = privileges(&["shop", "blog"]);
        many.groups = vec![
            AppCgroup::without_cgroups("Shop", Some("shop")),
            AppCgroup::without_cgroups("own", None),
        ];
        let find = |account, group: Option<&str>| {
            let mut order = confined(account);
            order.group = group.map(str::to_owned);
            let found = many.find_group(&order)?;
            io::Result::Ok(found.map(|it| it.name().to_owned()))
        };
        for (account, group) in [
            (Some("shop"), Some("Shop")),
            (None, Some("own")),
            // Applications without limits.
            (Some("blog"), None),
            (None, None),
        ] {
            assert_eq!(
                find(account, group).unwrap().as_deref(),
                group,
                "{account:?}"
            );
        }
        for (account, group) in [
            (Some("shop"), None),
            (Some("shop"), Some("own")),
            (Some("blog"), Some("Shop")),
            (None, Some("Shop")),
            (None, Some("../..")),
        ] {
            let refused = find(account, group).unwrap_err().to_string();
            assert!(
                refused.contains("restart"),
                "{account:?} {group:?}: {refused}"
            );
        }
        let next = many.find_group(&order(None, ProcessLifetime::Independent));
        assert!(next.unwrap().is_none());
    }

    #[test]
    fn rights_are_kept_for_users_or_groups_by_who_has_them() {
        let mut none = privileges(&[]);
        assert!(!none.keeps_root());
        none.groups.push(AppCgroup::without_cgroups("own", None));
        assert!(none.keeps_root());
        // A server that does not switch users loses none.
        none.server = None;
        assert!(!none.keeps_root());
    }

    #[test]
    fn only_a_successor_keeps_root() {
        let many = privileges(&["shop"]);
        let mut good = order(None, ProcessLifetime::Independent);
        let mut descriptors = Vec::new();
        many.authorize(&mut good, &mut descriptors).unwrap();
        assert_eq!(good.program, "/proc/self/fd/10");
        assert_eq!((good.fd_numbers, descriptors.len()), (vec![1, 2, 9, 10], 1));
        for (number, change) in CHANGES.into_iter().enumerate() {
            let mut changed = order(None, ProcessLifetime::Independent);
            change(&mut changed);
            assert!(permit(&many, &mut changed).is_err(), "change {number}");
        }
        let mut other = order(None, ProcessLifetime::Independent);
        (other.program, other.arg0) = ("/bin/ls".into(), "/bin/ls".into());
        assert!(permit(&many, &mut other).is_err());
    }

    /// Changes that make an order for the next server invalid.
    const CHANGES: [fn(&mut LaunchOrder); 17] = [
        |order| order.program = "/bin/ls".into(),
        |order| order.arg0 = "ls".into(),
        |order| order.args.push("-c".into()),
        |order| order.dir = "/tmp".into(),
        |order| order.env.push(("LD_PRELOAD".into(), "9".into())),
        |order| order.env[1] = ("LD_PRELOAD".into(), "9".into()),
        |order| order.env[1].1 = "/tmp/x.so".into(),
        |order| order.env[1].1 = "10".into(),
        |order| order.env.swap(0, 1),
        |order| order.env.clear(),
        |order| order.fd_numbers.push(0),
        |order| order.fd_numbers.swap(0, 2),
        |order| order.sandbox = Some(Sandbox::available()),
        |order| order.access.bind_ports = Some(Vec::new()),
        |order| order.account = Some("blog".to_owned()),
        |order| order.group = Some("Shop".to_owned()),
        |order| order.app = "web".to_owned(),
    ];

    #[test]
    fn without_the_rights_of_root_an_order_for_the_next_server_starts_nothing_else() {
        let none = privileges(&[]);
        let mut good = order(None, ProcessLifetime::Independent);
        assert_eq!(permit(&none, &mut good).unwrap(), None);
        assert_eq!(good, order(None, ProcessLifetime::Independent));
        for (number, change) in CHANGES.into_iter().enumerate() {
            let mut changed = order(None, ProcessLifetime::Independent);
            change(&mut changed);
            assert!(permit(&none, &mut changed).is_err(), "change {number}");
        }
        // Nor does a launcher that knows no next server.
        let unknown = permit(&Privileges::default(), &mut good);
        assert!(unknown.unwrap_err().to_string().contains("restart"));
    }

    #[test]
    fn another_program_follows_only_from_a_place_that_applications_cannot_write() {
        let dir = std::env::temp_dir().join(format!("penstock-next-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let place = dir.join("penstock");
        std::fs::copy("/bin/true", &place).unwrap();
        let none = privileges(&[]);
        let try_place = |mode: u32, place: &Path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(dir.join("penstock"), mode).unwrap();
            let mut other = order(None, ProcessLifetime::Independent);
            (other.program, other.arg0) = (place.into(), place.into());
            let mut descriptors = Vec::new();
            let permitted = none.authorize(&mut other, &mut descriptors).map(|_| ());
            permitted.map(|()| (other.program, descriptors.len()))
        };
        let refused = try_place(0o777, &place).unwrap_err().to_string();
        assert!(
            refused.contains("writable by users other than"),
            "{refused}"
        );
        let refused = try_place(0o755, Path::new("penstock"))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("absolute"), "{refused}");
        let found = try_place(0o755, Path::new("/bin/ls")).unwrap();
        assert_eq!(
            found,
            ("/proc/self/fd/10".into(), 1),
            "the file that was looked at"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
