//! The address on which a server of its own listens, and how its command line names it.
//!
//! The executor opens a [`ListenAddress`] for each process of a `command` or `fastcgi` application.
//!
//! # Invariants
//! - No two processes of an application have the same address, also not an ending one and its
//!   successor.
//! - Sockets lie in a folder that only this user can enter, and are removed with their process;
//!   those of a killed server at the next start.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use penstock_config::{App, AppKind, ServerAddr};
use penstock_sys::locked_dir::LockedDir;

/// Longest path of a Unix socket: `sun_path` has 108 bytes, the last of them zero (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// The number of an inherited socket (`SD_LISTEN_FDS_START`, sd_listen_fds(3)).
const LISTEN_FD: RawFd = 3;

/// The number of a FastCGI application's socket (`FCGI_LISTENSOCK_FILENO`, FastCGI 1.0, section
/// 2.2).
const FASTCGI_FD: RawFd = 0;

const SHELL: &str = "/bin/sh";

/// Programs that look for inherited sockets by `LISTEN_FDS` want their own process id beside it,
/// which unknown to others before they run. Without a shell the command line needs `{fd}`.
const EXPORT_LISTEN_PID: &str = r#"LISTEN_PID=$$; export LISTEN_PID; exec "$@""#;

/// Ports that are tried until one is not taken by another process of the application, and folders
/// until one is not there.
const MAX_TRIES: u32 = 1000;

/// What a command line leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenPlaceholder {
    /// `{port}`: a free port on loopback that it is to listen on.
    Port,
    /// Nothing: a free port on loopback, which an HTTP program finds in `PORT`.
    Variable,
    /// `{socket}`: the path of a Unix socket that it is to make.
    Socket,
    /// `{fd}`: the number of a listening socket that it inherits.
    Descriptor,
    /// Nothing: a listening socket is the descriptor 0 of a FastCGI program (FastCGI 1.0, section 2.2).
    Stdin,
}

/// An address to listen at, not used yet.
#[derive(Debug)]
pub(super) struct ListenAddress {
    pub(super) address: ServerAddr,
    /// The socket that the process inherits, and the number that it has there.
    pub(super) listener: Option<(OwnedFd, RawFd)>,
    /// Keeps the port from others for as long as it lives.
    pub(super) reserved_port: Option<TcpListener>,
    pub(super) socket_file: Option<SocketFile>,
}

/// A socket's path, removed when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

/// A folder of our own for sockets, removed with all in it when this is dropped.
#[derive(Debug)]
pub(super) struct SocketDir(LockedDir);

impl ListenPlaceholder {
    /// Finds it in the command line of `app`.
    ///
    /// # Errors
    /// A sentence, when there is more than one; `config` refuses such commands before.
    pub(super) fn find_in(app: &App) -> Result<Self, String> {
        let all = [Self::Port, Self::Socket, Self::Descriptor];
        let is_in = |blank: &Self| {
            app.command
                .iter()
                .any(|word| word.contains(blank.placeholder()))
        };
        let mut found = all.into_iter().filter(is_in);
        match (found.next(), found.next()) {
            (Some(blank), None) => Ok(blank),
            (Some(one), Some(other)) => Err(format!(
                "the command has {} and {}: a process listens at one place",
                one.placeholder(),
                other.placeholder()
            )),
            (None, _) if app.kind == AppKind::FastCgi => Ok(Self::Stdin),
            (None, _) => Ok(Self::Variable),
        }
    }

    fn placeholder(self) -> &'static str {
        match self {
            Self::Port => "{port}",
            Self::Socket => "{socket}",
            Self::Descriptor => "{fd}",
            // Never searched for.
            Self::Variable | Self::Stdin => "",
        }
    }
}

impl ListenAddress {
    /// A port on loopback that is free and that `is_taken` does not know.
    ///
    /// # Errors
    /// When the kernel has none left.
    pub(super) fn reserve_port(is_taken: impl Fn(&ServerAddr) -> bool) -> io::Result<Self> {
        // Those that are refused stay bound until another is found: the kernel gives each once.
        let mut refused = Vec::new();
        for _ in 0..MAX_TRIES {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let address = ServerAddr::Tcp(listener.local_addr()?);
            if is_taken(&address) {
                refused.push(listener);
                continue;
            }
            return Ok(Self {
                address,
                listener: None,
                reserved_port: Some(listener),
                socket_file: None,
            });
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// A TCP socket on loopback that listens already.
    ///
    /// # Errors
    /// Those of `bind`.
    pub(super) fn bind_port() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(Self {
            address: ServerAddr::Tcp(listener.local_addr()?),
            listener: Some((listener.into(), LISTEN_FD)),
            reserved_port: None,
            socket_file: None,
        })
    }

    /// A path in `folder`, where nothing is yet.
    ///
    /// # Errors
    /// When it is too long for a socket.
    pub(super) fn reserve_socket_path(folder: &SocketDir, name: &str) -> io::Result<Self> {
        let path = folder.path().join(name);
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let why = format!(
                "{}: longer than the {MAX_SOCKET_PATH} bytes that a socket's path may have; \
                 choose a shorter limits.temp_dir",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self {
            address: ServerAddr::Unix(path.clone()),
            listener: None,
            reserved_port: None,
            socket_file: Some(SocketFile(path)),
        })
    }

    /// A Unix socket in `folder` that listens already.
    ///
    /// # Errors
    /// As [`ListenAddress::reserve_socket_path`], and those of `bind`.
    pub(super) fn bind_socket(folder: &SocketDir, name: &str) -> io::Result<Self> {
        let mut address = Self::reserve_socket_path(folder, name)?;
        // A blocking one: that is what programs expect to inherit.
        let listener = UnixListener::bind(folder.path().join(name))?;
        address.listener = Some((listener.into(), FASTCGI_FD));
        Ok(address)
    }

    /// The command line of `app` with its blank filled in.
    pub(super) fn fill_command(&self, app: &App) -> Vec<OsString> {
        let fill = |word: &String| match (&self.address, &self.listener) {
            (_, Some((_, fd))) => word
                .replace(ListenPlaceholder::Descriptor.placeholder(), &fd.to_string())
                .into(),
            (ServerAddr::Tcp(address), None) => {
                let port = address.port().to_string();
                word.replace(ListenPlaceholder::Port.placeholder(), &port)
                    .into()
            }
            (ServerAddr::Unix(path), None) => {
                let path = path.display().to_string();
                word.replace(ListenPlaceholder::Socket.placeholder(), &path)
                    .into()
            }
            (ServerAddr::Name { .. } | ServerAddr::Srv(_) | ServerAddr::Joined(_), None) => {
                word.into()
            }
        };
        let words = app.command.iter().map(fill);
        match &self.listener {
            Some((_, LISTEN_FD)) if Path::new(SHELL).exists() => {
                let wrapper = [SHELL, "-c", EXPORT_LISTEN_PID, "sh"].map(OsString::from);
                wrapper.into_iter().chain(words).collect()
            }
            _ => words.collect(),
        }
    }
}

impl SocketDir {
    /// Makes `penstock.PID-NAME` in `parent`, or the like when that is there, for this user alone.
    ///
    /// # Errors
    /// Those of `mkdir`.
    pub(super) fn create(parent: &Path, app: &str) -> io::Result<Self> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let app: String = app.chars().take(24).map(plain).collect();
        let pid = std::process::id();
        for number in 0..MAX_TRIES {
            let name = match number {
                0 => format!("{DIR_PREFIX}{pid}-{app}"),
                // An application of that name may still be ending, and a number may come again.
                _ => format!("{DIR_PREFIX}{pid}-{app}-{number}"),
            };
            let path = parent.join(name);
            let shown = path.display().to_string();
            match LockedDir::create(path) {
                Ok(folder) => return Ok(Self(folder)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let why = format!("{shown}: {error}");
                    return Err(io::Error::new(error.kind(), why));
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

const DIR_PREFIX: &str = "penstock.";

/// Removes the folders for sockets in `parent` whose servers were killed; how many. Blocks.
///
/// # Errors
/// When `parent` cannot be read.
pub fn remove_abandoned_socket_dirs(parent: &Path) -> io::Result<usize> {
    penstock_sys::locked_dir::remove_abandoned(parent, DIR_PREFIX)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A process that never came to bind it left nothing, one that is tidy neither.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn app(kind: AppKind, words: &[&str]) -> App {
        let mut app = App::new("shop/1", PathBuf::from("/"), kind, "");
        app.command = words.iter().map(ToString::to_string).collect();
        app
    }

    #[test]
    fn a_command_has_one_listen_placeholder() {
        let rows: [(&str, AppKind, &[&str], Option<ListenPlaceholder>); 7] = [
            (
                "port",
                AppKind::Command,
                &["x", "-p{port}"],
                Some(ListenPlaceholder::Port),
            ),
            (
                "socket",
                AppKind::Command,
                &["x", "{socket}"],
                Some(ListenPlaceholder::Socket),
            ),
            (
                "fd",
                AppKind::Command,
                &["x", "fd://{fd}"],
                Some(ListenPlaceholder::Descriptor),
            ),
            (
                "twice",
                AppKind::Command,
                &["{port}", "{port}"],
                Some(ListenPlaceholder::Port),
            ),
            (
                "none",
                AppKind::Command,
                &["x", "{prt}"],
                Some(ListenPlaceholder::Variable),
            ),
            (
                "none, fastcgi",
                AppKind::FastCgi,
                &["x"],
                Some(ListenPlaceholder::Stdin),
            ),
            ("two", AppKind::FastCgi, &["{port}", "{socket}"], None),
        ];
        for (name, kind, words, expected) in rows {
            assert_eq!(
                ListenPlaceholder::find_in(&app(kind, words)).ok(),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn a_port_is_free_and_not_that_of_another_process() {
        let address = ListenAddress::reserve_port(|_| false).unwrap();
        let ServerAddr::Tcp(tcp_address) = address.address else {
            panic!("a port is a TCP address");
        };
        assert!(
            TcpListener::bind(tcp_address).is_err(),
            "it is kept from others"
        );
        drop(address.reserved_port);
        assert!(TcpListener::bind(tcp_address).is_ok(), "and then free");
        let seen = std::cell::RefCell::new(Vec::new());
        let is_taken = |address: &ServerAddr| {
            seen.borrow_mut().push(address.clone());
            seen.borrow().len() < 3
        };
        let address = ListenAddress::reserve_port(is_taken).unwrap();
        assert!(!seen.borrow()[..2].contains(&address.address));
        let nothing = ListenAddress::reserve_port(|_| true).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_command_line_is_filled_in() {
        let app = app(
            AppKind::Command,
            &["thin", "-p", "{port}", "--tag={port}-{x}"],
        );
        let address = ListenAddress::reserve_port(|_| false).unwrap();
        let port = match address.address {
            ServerAddr::Tcp(address) => address.port(),
            _ => 0,
        };
        let words = address.fill_command(&app);
        let expected = [
            "thin",
            "-p",
            &port.to_string(),
            &format!("--tag={port}-{{x}}"),
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn sockets_lie_in_a_folder_that_only_this_user_can_enter_and_that_goes_with_its_owner() {
        let parent = std::env::temp_dir();
        let (one, other) = (
            SocketDir::create(&parent, "shop/1").unwrap(),
            SocketDir::create(&parent, "shop/1").unwrap(),
        );
        assert_ne!(one.path(), other.path(), "an application and its successor");
        let mode = std::fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let address = ListenAddress::bind_socket(&one, "1.sock").unwrap();
        assert!(one.path().join("1.sock").exists());
        drop(address);
        assert!(!one.path().join("1.sock").exists(), "gone with its process");
        let too_long = ListenAddress::reserve_socket_path(&one, &"x".repeat(100)).unwrap_err();
        assert!(too_long.to_string().contains("107 bytes"), "{too_long}");
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
