//! The protocol between a server and its successor during an upgrade, and the successor's side.
//!
//! The old server (`server::upgrade`) starts the program with one end of a packet socket, passes
//! its number in [`UPGRADE_FD_VAR`], and sends first:
//!
//! ```text
//! old: hello 1                       the protocol version
//! old: socket N ROLE OWNER ADDRESS   a descriptor of listener N, one message per socket
//! old: size P T NAME                 application NAME has P processes of T threads under load
//! old: token SHA-256                 digest of the token for changes over TCP
//! old: publishing SECRET             the secret of the keys by which applications publish
//! old: errors                        a descriptor: standard error after the upgrade
//! old: end
//! new: ready                         with the addresses that it uses, a line each
//! old: go                            from here on both accept
//! new: serving ADMIN                 the old server stops accepting and drains;
//!                                    ADMIN is the new admin address, or empty
//! old: known                         the service manager knows the new main process
//! ```
//!
//! Before `end`, the new server ignores unknown messages without a descriptor.
//!
//! # Invariants
//!
//! - Until `go` the new server accepts no connection of these sockets. (Under `penstock work` it
//!   has joined the front end by then.)
//! - After `serving` the new server serves every socket of the addresses it uses.
//! - If one side ends before, the other serves everything alone. The new server, once it has all
//!   sockets, takes the end of the old process for `go`, but never its silence: while that process
//!   lives, it serves.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use penstock_apps::AppSize;
use penstock_config::ListenAddr;
use penstock_runtime::{RegisteredFd, clock};
use penstock_sys::poll::Interest;
use penstock_sys::{daemon, fd_packets};

use crate::components::AppSizes;
use crate::inherited_listeners::{InheritedListener, InheritedListeners, ListenerRole};

/// The variable with the descriptor number of the new server's end.
pub(crate) const UPGRADE_FD_VAR: &str = "PENSTOCK_HANDOVER";

const PROTOCOL_VERSION: u32 = 1;

/// How long the other side may take for a message that is ready.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a process may take to exit after its descriptors are closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to check for that exit.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum packet length: `ready` with every address of a large configuration.
const MAX_PACKET_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UpgradeMessage {
    Hello,
    /// Carries a socket of the listener with that number.
    Socket {
        listener: usize,
        role: ListenerRole,
        /// Whether its file belongs to a service manager.
        is_lent: bool,
        wanted: ListenAddr,
    },
    /// An application's name, and its size under load.
    AppSize(String, AppSize),
    /// The SHA-256 of the token for changes over TCP: the new server may not be able to read the
    /// file.
    AdminTokenDigest([u8; 32]),
    /// The secret of the keys by which applications publish: workers of both servers use them.
    PublishSecret(PublishSecret),
    /// Carries the stream for errors.
    Stderr,
    /// Everything has been handed over.
    End,
    /// The new server is ready; it uses these addresses.
    Ready(Vec<ListenAddr>),
    /// The new server may accept.
    Go,
    /// The new server accepts; carries its admin address, if any.
    Serving(Option<ListenAddr>),
    /// The service manager knows the new main process.
    ManagerNotified,
}

impl UpgradeMessage {
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Hello => format!("hello {PROTOCOL_VERSION}"),
            Self::Socket {
                listener,
                role,
                is_lent,
                wanted,
            } => {
                let role = match role {
                    ListenerRole::Http => "http",
                    ListenerRole::Tcp => "tcp",
                    ListenerRole::Admin => "admin",
                    ListenerRole::Control => "control",
                    ListenerRole::Probes => "probes",
                };
                let owner = if *is_lent { "lent" } else { "own" };
                format!("socket {listener} {role} {owner} {}", address_text(wanted))
            }
            Self::AppSize(name, AppSize { processes, threads }) => {
                format!("size {processes} {threads} {name}")
            }
            Self::AdminTokenDigest(digest) => {
                let digits = digest.iter().map(|byte| format!("{byte:02x}"));
                format!("token {}", digits.collect::<String>())
            }
            Self::PublishSecret(PublishSecret(secret)) => {
                let digits = secret.iter().map(|byte| format!("{byte:02x}"));
                format!("publishing {}", digits.collect::<String>())
            }
            Self::Stderr => "errors".to_owned(),
            Self::End => "end".to_owned(),
            Self::Ready(taken) => {
                let taken = taken
                    .iter()
                    .map(|address| format!("\n{}", address_text(address)));
                format!("ready{}", taken.collect::<String>())
            }
            Self::Go => "go".to_owned(),
            Self::Serving(None) => "serving".to_owned(),
            Self::Serving(Some(admin)) => format!("serving {}", address_text(admin)),
            Self::ManagerNotified => "known".to_owned(),
        }
    }

    /// # Errors
    /// An unknown or malformed message.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown message {text:?}");
        let (first, rest) = text.split_once([' ', '\n']).unwrap_or((text, ""));
        Ok(match first {
            "hello" if rest == PROTOCOL_VERSION.to_string() => Self::Hello,
            "hello" => {
                return Err(format!(
                    "it uses protocol version {rest}, this server {PROTOCOL_VERSION}"
                ));
            }
            "socket" => {
                let mut words = rest.splitn(4, ' ');
                let mut next = || words.next().ok_or_else(unknown);
                Self::Socket {
                    listener: next()?.parse().map_err(|_| unknown())?,
                    role: match next()? {
                        "http" => ListenerRole::Http,
                        "tcp" => ListenerRole::Tcp,
                        "admin" => ListenerRole::Admin,
                        "control" => ListenerRole::Control,
                        "probes" => ListenerRole::Probes,
                        _ => return Err(unknown()),
                    },
                    is_lent: next()? == "lent",
                    wanted: next()?.parse().map_err(|_| unknown())?,
                }
            }
            "size" => {
                let mut words = rest.splitn(3, ' ');
                let mut next = || words.next().ok_or_else(unknown);
                let mut number = || next()?.parse().map_err(|_| unknown());
                let (processes, threads) = (number()?, number()?);
                Self::AppSize(next()?.to_owned(), AppSize { processes, threads })
            }
            "token" => Self::AdminTokenDigest(parse_digest(rest).ok_or_else(unknown)?),
            "publishing" => {
                // The secret must not appear in an error.
                let secret = parse_digest(rest).ok_or("the message `publishing` is malformed")?;
                Self::PublishSecret(PublishSecret(secret))
            }
            "errors" => Self::Stderr,
            "end" => Self::End,
            "ready" => {
                let addresses = rest.lines().map(str::parse);
                Self::Ready(addresses.collect::<Result<_, _>>().map_err(|_| unknown())?)
            }
            "go" => Self::Go,
            "serving" if rest.is_empty() => Self::Serving(None),
            "serving" => Self::Serving(Some(rest.parse().map_err(|_| unknown())?)),
            "known" => Self::ManagerNotified,
            _ => return Err(unknown()),
        })
    }
}

/// Parses 32 bytes of hexadecimal digits.
fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

/// A secret that is passed to the next server and never logged.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PublishSecret(pub(crate) [u8; 32]);

impl std::fmt::Debug for PublishSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The result of an upgrade, as a sentence for people and for `penstock upgrade`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpgradeOutcome {
    /// The process that serves.
    pub(crate) pid: u32,
    /// The new admin address, if it has changed.
    pub(crate) new_admin: Option<Option<ListenAddr>>,
}

impl std::fmt::Display for UpgradeOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} serves", self.pid)?;
        match &self.new_admin {
            None => Ok(()),
            Some(Some(admin)) => write!(f, "{ADMIN_AT}{}", address_text(admin)),
            Some(None) => f.write_str(ADMIN_OFF),
        }
    }
}

impl UpgradeOutcome {
    /// Parses the new admin address from the sentence, if it has one.
    pub(crate) fn parse_new_admin(sentence: &str) -> Option<Option<ListenAddr>> {
        if sentence.ends_with(ADMIN_OFF) {
            return Some(None);
        }
        let (_, admin) = sentence.split_once(ADMIN_AT)?;
        admin.parse().ok().map(Some)
    }
}

const ADMIN_AT: &str = ", administered at ";
const ADMIN_OFF: &str = ", without an admin interface";

/// An address without a scheme, as it is parsed.
fn address_text(address: &ListenAddr) -> String {
    match address {
        ListenAddr::Tcp(tcp) => tcp.to_string(),
        ListenAddr::Port(port) => format!(":{port}"),
        ListenAddr::Unix(_) => address.to_string(),
    }
}

/// One end of the channel between the servers, on the control loop.
#[derive(Debug)]
pub(crate) struct UpgradeChannel(RegisteredFd);

impl UpgradeChannel {
    /// # Errors
    /// The kernel refuses the registration.
    pub(crate) fn new(socket: OwnedFd) -> std::io::Result<Self> {
        Ok(Self(RegisteredFd::new(socket, Interest::Both)?))
    }

    /// # Errors
    /// The other side has closed the channel, or does not read for [`REPLY_TIMEOUT`].
    pub(crate) async fn send(
        &self,
        word: &UpgradeMessage,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), String> {
        let (text, deadline) = (word.encode(), clock::now() + REPLY_TIMEOUT);
        let said = clock::timeout_at(deadline, async {
            loop {
                poll_fn(|cx| self.0.poll_writable(cx)).await?;
                match fd_packets::send_packet(self.0.as_fd(), text.as_bytes(), descriptor) {
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.0.clear_writable(),
                    done => return done,
                }
            }
        });
        match said.await {
            Some(done) => done.map_err(|error| format!("it does not read: {error}")),
            None => Err("it does not read".to_owned()),
        }
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The other side has closed the channel, or sent no valid message.
    pub(crate) async fn receive(&self) -> Result<UpgradeMessage, String> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        loop {
            let readable = poll_fn(|cx| self.0.poll_readable(cx)).await;
            readable.map_err(|error| error.to_string())?;
            match fd_packets::receive_packet(self.0.as_fd(), &mut packet) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.0.clear_readable(),
                Err(error) => return Err(error.to_string()),
                Ok((0, _)) => return Err("it closed the channel".to_owned()),
                Ok((count, _)) => {
                    return UpgradeMessage::parse(&String::from_utf8_lossy(&packet[..count]));
                }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Predecessor {
    socket: OwnedFd,
    stderr: Option<OwnedFd>,
    app_sizes: AppSizes,
    token_digest: Option<[u8; 32]>,
    publish_secret: Option<[u8; 32]>,
    pid: u32,
}

impl Predecessor {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The SHA-256 of its token for changes over TCP.
    pub(crate) fn token(&self) -> Option<[u8; 32]> {
        self.token_digest
    }

    /// The secret of the keys by which its applications publish.
    pub(crate) fn secret(&self) -> Option<[u8; 32]> {
        self.publish_secret
    }

    /// The sizes of its applications under load.
    pub(crate) fn sizes(&self) -> &AppSizes {
        &self.app_sizes
    }

    /// Receives everything over the descriptor of that number. Blocks; for a start.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub(crate) fn connect(number: &str) -> Result<(Self, InheritedListeners), String> {
        let say = |error: std::io::Error| format!("{UPGRADE_FD_VAR}: {error}");
        let number = number
            .parse()
            .map_err(|_| format!("{UPGRADE_FD_VAR}: {number:?}"))?;
        Self::receive_listeners(fd_packets::take_inherited_fd(number).map_err(say)?)
    }

    /// As [`Self::connect`], with the owned descriptor.
    fn receive_listeners(socket: OwnedFd) -> Result<(Self, InheritedListeners), String> {
        let say = |error: std::io::Error| format!("{UPGRADE_FD_VAR}: {error}");
        let mut old = Self {
            socket,
            stderr: None,
            app_sizes: AppSizes::new(),
            token_digest: None,
            publish_secret: None,
            pid: std::os::unix::process::parent_id(),
        };
        let mut given: Vec<(usize, InheritedListener)> = Vec::new();
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let mut is_met = false;
        loop {
            let (socket, deadline) = (old.socket.as_fd(), REPLY_TIMEOUT);
            let received = fd_packets::receive_packet_with_timeout(socket, &mut packet, deadline);
            let (count, descriptor) = received.map_err(say)?;
            if count == 0 {
                return Err(format!(
                    "{UPGRADE_FD_VAR}: the previous server closed the channel"
                ));
            }
            let word = match UpgradeMessage::parse(&String::from_utf8_lossy(&packet[..count])) {
                // A newer server may send messages that an older one can do without.
                Err(_) if is_met && descriptor.is_none() => continue,
                word => word.map_err(|error| format!("{UPGRADE_FD_VAR}: {error}"))?,
            };
            match (word, descriptor) {
                (UpgradeMessage::Hello, _) => is_met = true,
                (_, _) if !is_met => {
                    return Err(format!("{UPGRADE_FD_VAR}: no protocol version was sent"));
                }
                (
                    UpgradeMessage::Socket {
                        listener,
                        role,
                        is_lent,
                        wanted,
                    },
                    Some(socket),
                ) => match given.iter_mut().find(|(number, _)| *number == listener) {
                    Some((_, known)) => known.sockets.push(socket),
                    None => {
                        let one = InheritedListener {
                            bound_address: fd_packets::listen_address_of(&socket).map_err(say)?,
                            name: wanted.to_string(),
                            configured: Some((role, wanted)),
                            sockets: vec![socket],
                            is_borrowed: is_lent,
                        };
                        given.push((listener, one));
                    }
                },
                (UpgradeMessage::AppSize(name, size), _) => {
                    old.app_sizes.insert(name, size);
                }
                (UpgradeMessage::AdminTokenDigest(digest), _) => old.token_digest = Some(digest),
                (UpgradeMessage::PublishSecret(PublishSecret(secret)), _) => {
                    old.publish_secret = Some(secret);
                }
                (UpgradeMessage::Stderr, Some(errors)) => old.stderr = Some(errors),
                (UpgradeMessage::End, _) => break,
                (other, _) => {
                    return Err(format!("{UPGRADE_FD_VAR}: unexpected message {other:?}"));
                }
            }
        }
        let given = given.into_iter().map(|(_, one)| one).collect();
        Ok((old, InheritedListeners::new(given)))
    }

    /// Reports that this server is ready, and waits until it may accept.
    ///
    /// # Errors
    /// The old server continues by itself.
    pub(crate) async fn report_ready(self, taken: &[ListenAddr]) -> Result<ServingAck, String> {
        let say = |error| format!("the previous server: {error}");
        let line = UpgradeChannel::new(self.socket).map_err(|error| error.to_string())?;
        let said = line
            .send(&UpgradeMessage::Ready(taken.to_vec()), None)
            .await;
        let heard = match said {
            Ok(()) => clock::timeout(REPLY_TIMEOUT, line.receive()).await,
            Err(error) => Some(Err(error)),
        };
        match heard {
            Some(Ok(UpgradeMessage::Go)) => {}
            Some(Ok(other)) => return Err(say(format!("{other:?} instead of Go"))),
            Some(Err(_)) if has_exited(self.pid).await => {
                log::warn!("upgrade: previous server exited (pid={})", self.pid);
            }
            Some(Err(error)) => return Err(say(error)),
            None => return Err(say("it does not answer".to_owned())),
        }
        if let Some(errors) = &self.stderr
            && let Err(error) = daemon::redirect_stderr(errors.as_fd())
        {
            log::warn!("upgrade: cannot take over standard error: {error}");
        }
        Ok(ServingAck(line))
    }
}

/// Whether the process that started this one has exited: its end of the channel closes a moment
/// before.
async fn has_exited(pid: u32) -> bool {
    let deadline = clock::now() + EXIT_TIMEOUT;
    while std::os::unix::process::parent_id() == pid {
        if clock::now() > deadline {
            return false;
        }
        clock::sleep(POLL_INTERVAL).await;
    }
    true
}

/// The state between `go` and `serving`.
#[derive(Debug)]
pub(crate) struct ServingAck(UpgradeChannel);

impl ServingAck {
    /// Reports that every listener is served, and the admin address. Waits until the service
    /// manager knows this process, so that it accepts this process's notifications.
    ///
    /// # Errors
    /// The old server no longer reads.
    pub(crate) async fn report_serving(self, admin: Option<ListenAddr>) -> Result<(), String> {
        self.0.send(&UpgradeMessage::Serving(admin), None).await?;
        // A server that does not know this message, or has ended, closes the channel.
        let _ = clock::timeout(REPLY_TIMEOUT, self.0.receive()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_was_said() {
        let address = |text: &str| text.parse::<ListenAddr>().unwrap();
        let socket = |role, is_lent, wanted| UpgradeMessage::Socket {
            listener: 3,
            role,
            is_lent,
            wanted: address(wanted),
        };
        for word in [
            UpgradeMessage::Hello,
            UpgradeMessage::AppSize(
                "shop".to_owned(),
                AppSize {
                    processes: 5,
                    threads: 3,
                },
            ),
            socket(ListenerRole::Http, false, ":80"),
            socket(ListenerRole::Tcp, false, "[::1]:9000"),
            socket(ListenerRole::Admin, true, "unix:/run/a folder/admin.sock"),
            socket(ListenerRole::Control, false, "unix:/run/penstock/80.sock"),
            socket(ListenerRole::Probes, false, ":9090"),
            UpgradeMessage::AdminTokenDigest([0xa5; 32]),
            UpgradeMessage::PublishSecret(PublishSecret([0xa5; 32])),
            UpgradeMessage::Stderr,
            UpgradeMessage::End,
            UpgradeMessage::Ready(Vec::new()),
            UpgradeMessage::Ready(vec![address("127.0.0.1:0"), address("unix:/run/a b.sock")]),
            UpgradeMessage::Go,
            UpgradeMessage::Serving(None),
            UpgradeMessage::Serving(Some(address("unix:/run/a b.sock"))),
            UpgradeMessage::ManagerNotified,
        ] {
            assert_eq!(UpgradeMessage::parse(&word.encode()), Ok(word));
        }
    }

    /// The result of these messages, followed by the end of the old server.
    fn met(words: &[&str]) -> Result<Predecessor, String> {
        let (ours, theirs) = fd_packets::packet_pair().unwrap();
        for word in words {
            fd_packets::send_packet(ours.as_fd(), word.as_bytes(), None).unwrap();
        }
        drop(ours);
        Predecessor::receive_listeners(theirs).map(|(old, _)| old)
    }

    #[test]
    fn words_that_are_not_known_are_passed_over_and_the_end_of_the_old_server_is_not() {
        let old = met(&["hello 1", "weather fine", "size 3 2 a shop", "end"]).unwrap();
        let size = AppSize {
            processes: 3,
            threads: 2,
        };
        assert_eq!(old.sizes().get("a shop"), Some(&size));
        for (words, error) in [
            (&["hello 1", "weather fine"][..], "closed the channel"),
            (&[], "closed the channel"),
            (&["weather fine", "hello 1", "end"], "unknown message"),
            (&["hello 2", "end"], "it uses protocol version 2"),
            (&["hello 1", "go"], "unexpected message"),
        ] {
            let told = met(words).unwrap_err();
            assert!(told.contains(error), "{words:?}: {told}");
        }
    }

    #[test]
    fn a_changed_admin_address_is_read_from_the_sentence() {
        let address = |text: &str| text.parse::<ListenAddr>().unwrap();
        for admin in [
            None,
            Some(None),
            Some(Some(address("127.0.0.1:8091"))),
            Some(Some(address("unix:/run/a b.sock"))),
        ] {
            let told = UpgradeOutcome {
                pid: 7,
                new_admin: admin,
            }
            .to_string();
            assert!(told.starts_with("process 7 serves"));
            let again = UpgradeOutcome::parse_new_admin(&told);
            assert_eq!(
                UpgradeOutcome {
                    pid: 7,
                    new_admin: again
                }
                .to_string(),
                told
            );
        }
    }

    #[test]
    fn what_is_no_word_is_refused() {
        for text in [
            "",
            "hello",
            "hello 2",
            "socket",
            "socket x http own :80",
            "socket 1 ftp own :80",
            "socket 1 http own",
            "socket 1 http own nowhere",
            "ready\nnowhere",
            "serving nowhere",
            "stay",
        ] {
            assert!(UpgradeMessage::parse(text).is_err(), "{text:?}");
        }
    }
}
