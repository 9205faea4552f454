//! The protocol between a server and its successor during an upgrade, and the successor's side.
//!
//! The old server (`server::upgrade`) starts the program with one end of a packet socket, passes
//! its number in [`UPGRADE_FD_VAR`], and sends first. Each packet is an [`UpgradeMessage`] in JSON:
//!
//! ```text
//! old: hello, socket (one for each), app_size, admin_token_digest, publish_secret,
//! ticket_keys, pause, maintenance, pid_file, stderr, hub,
//!      end
//! new: ready
//! old: go                 from here on both accept
//! new: serving            the old server stops accepting and drains
//! old: manager_notified
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
use std::path::PathBuf;
use std::time::Duration;

use penstock_apps::AppSize;
use penstock_config::ListenAddr;
use penstock_rules::{BackEndName, MaintenanceRule};
use penstock_runtime::{RegisteredFd, clock};
use penstock_sys::poll::Interest;
use penstock_sys::{daemon, fd_packets};
use serde::{Deserialize, Serialize};

use crate::components::AppSizes;
use crate::inherited_listeners::{InheritedListener, InheritedListeners, ListenerRole};
use crate::pid_file::PidFile;

/// The variable with the descriptor number of the new server's end.
pub(crate) const UPGRADE_FD_VAR: &str = "PENSTOCK_HANDOVER";

const PROTOCOL_VERSION: u32 = 2;

/// How long the other side may take for a message that is ready.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a process may take to exit after its descriptors are closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to check for that exit.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum packet length: `ready` with every address of a large configuration.
const MAX_PACKET_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpgradeMessage {
    /// The protocol version.
    Hello(u32),
    /// Carries a socket of the listener with that number.
    Socket {
        listener: usize,
        role: ListenerRole,
        /// Whether its file belongs to a service manager.
        is_lent: bool,
        wanted: AddressText,
    },
    /// An application's size under load.
    AppSize {
        name: String,
        processes: usize,
        threads: usize,
    },
    /// The SHA-256 of the token for changes over TCP: the new server may not be able to read the
    /// file.
    AdminTokenDigest([u8; 32]),
    /// The secret of the keys by which applications publish: workers of both servers use them.
    PublishSecret(PublishSecret),
    /// The keys of TLS session tickets: clients of this server resume at the next.
    TicketKeys(SecretBytes),
    /// A pause of a back end, with the time that is left of it.
    Pause {
        is_app: bool,
        name: String,
        remaining_millis: u64,
    },
    /// A site that is in maintenance, or all of them.
    Maintenance(MaintenanceRule),
    /// Carries the open file with the process id, and its path. Sent only where one is configured.
    PidFile(PathBuf),
    /// Carries the stream for errors.
    Stderr,
    /// Carries the socket by which the hub moves ([`penstock_hub::HubTransfer`]).
    Hub,
    /// Everything has been handed over.
    End,
    /// The new server is ready; it uses these addresses.
    Ready(Vec<AddressText>),
    /// The new server may accept.
    Go,
    /// The new server accepts; carries its admin address, if any.
    Serving(Option<AddressText>),
    /// The service manager knows the new main process.
    ManagerNotified,
}

impl UpgradeMessage {
    pub(crate) const HELLO: Self = Self::Hello(PROTOCOL_VERSION);

    fn parse(packet: &[u8]) -> Result<Self, String> {
        match serde_json::from_slice(packet) {
            Ok(Self::Hello(version)) if version != PROTOCOL_VERSION => Err(format!(
                "it uses protocol version {version}, this server {PROTOCOL_VERSION}"
            )),
            Ok(message) => Ok(message),
            Err(error) => Err(format!("unknown message: {error}")),
        }
    }
}

/// An address as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct AddressText(pub(crate) ListenAddr);

impl From<AddressText> for String {
    fn from(AddressText(address): AddressText) -> Self {
        address_text(&address)
    }
}

impl TryFrom<String> for AddressText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text.parse().map(Self);
        address.map_err(|_| format!("no address: {text:?}"))
    }
}

/// A secret that is passed to the next server and never logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishSecret(pub(crate) [u8; 32]);

impl std::fmt::Debug for PublishSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Secret bytes that are passed to the next server and never logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecretBytes(pub(crate) Vec<u8>);

impl std::fmt::Debug for SecretBytes {
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
    pub(crate) fn parse_new_admin_address(sentence: &str) -> Option<Option<ListenAddr>> {
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
        let packet = serde_json::to_vec(word).map_err(|error| error.to_string())?;
        let sending = clock::timeout(REPLY_TIMEOUT, async {
            loop {
                poll_fn(|cx| self.0.poll_writable(cx)).await?;
                match fd_packets::send_packet(self.0.as_fd(), &packet, descriptor) {
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.0.clear_writable(),
                    done => return done,
                }
            }
        });
        match sending.await {
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
                    return UpgradeMessage::parse(&packet[..count]);
                }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Predecessor {
    socket: OwnedFd,
    stderr: Option<OwnedFd>,
    /// The socket by which its hub moves.
    pub(crate) hub: Option<OwnedFd>,
    /// The sizes of its applications under load.
    pub(crate) app_sizes: AppSizes,
    /// The back ends that are paused, with the time that is left.
    pub(crate) pauses: Vec<(BackEndName, Duration)>,
    /// Its sites in maintenance.
    pub(crate) maintenance: Vec<MaintenanceRule>,
    /// The SHA-256 of its token for changes over TCP.
    pub(crate) token_digest: Option<[u8; 32]>,
    /// The secret of the keys by which its applications publish.
    pub(crate) publish_secret: Option<[u8; 32]>,
    /// The keys of its TLS session tickets.
    pub(crate) ticket_keys: Option<SecretBytes>,
    /// The file with the process id.
    pub(crate) pid_file: Option<PidFile>,
    pub(crate) pid: u32,
}

impl Predecessor {
    /// Receives everything over the descriptor of that number. Blocks; for a start.
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
            hub: None,
            app_sizes: AppSizes::new(),
            pauses: Vec::new(),
            maintenance: Vec::new(),
            token_digest: None,
            publish_secret: None,
            ticket_keys: None,
            pid_file: None,
            pid: std::os::unix::process::parent_id(),
        };
        let mut listeners: Vec<(usize, InheritedListener)> = Vec::new();
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
            let word = match UpgradeMessage::parse(&packet[..count]) {
                // A newer server may send messages that an older one can do without.
                Err(_) if is_met && descriptor.is_none() => continue,
                word => word.map_err(|error| format!("{UPGRADE_FD_VAR}: {error}"))?,
            };
            match (word, descriptor) {
                (UpgradeMessage::Hello(_), _) => is_met = true,
                (_, _) if !is_met => {
                    return Err(format!("{UPGRADE_FD_VAR}: no protocol version was sent"));
                }
                (
                    UpgradeMessage::Socket {
                        listener,
                        role,
                        is_lent,
                        wanted: AddressText(wanted),
                    },
                    Some(socket),
                ) => match listeners.iter_mut().find(|(number, _)| *number == listener) {
                    Some((_, known)) => known.sockets.push(socket),
                    None => {
                        let one = InheritedListener {
                            bound_address: fd_packets::listen_address_of(&socket).map_err(say)?,
                            name: wanted.to_string(),
                            configured: Some((role, wanted)),
                            sockets: vec![socket],
                            is_borrowed: is_lent,
                        };
                        listeners.push((listener, one));
                    }
                },
                (
                    UpgradeMessage::AppSize {
                        name,
                        processes,
                        threads,
                    },
                    _,
                ) => {
                    let size = AppSize { processes, threads };
                    old.app_sizes.insert(name, size);
                }
                (UpgradeMessage::AdminTokenDigest(digest), _) => old.token_digest = Some(digest),
                (UpgradeMessage::PublishSecret(PublishSecret(secret)), _) => {
                    old.publish_secret = Some(secret);
                }
                (UpgradeMessage::TicketKeys(keys), _) => old.ticket_keys = Some(keys),
                (
                    UpgradeMessage::Pause {
                        is_app,
                        name,
                        remaining_millis,
                    },
                    _,
                ) => {
                    let name = match is_app {
                        true => BackEndName::App(name),
                        false => BackEndName::Upstream(name),
                    };
                    let remaining = Duration::from_millis(remaining_millis);
                    old.pauses.push((name, remaining));
                }
                (UpgradeMessage::Maintenance(rule), _) => old.maintenance.push(rule),
                (UpgradeMessage::PidFile(path), Some(file)) => {
                    old.pid_file = Some(PidFile::inherit(&path, file));
                }
                (UpgradeMessage::Stderr, Some(errors)) => old.stderr = Some(errors),
                (UpgradeMessage::Hub, Some(socket)) => old.hub = Some(socket),
                (UpgradeMessage::End, _) => break,
                (other, _) => {
                    return Err(format!("{UPGRADE_FD_VAR}: unexpected message {other:?}"));
                }
            }
        }
        let listeners = listeners.into_iter().map(|(_, one)| one).collect();
        Ok((old, InheritedListeners::new(listeners)))
    }

    /// Reports that this server is ready, and waits until it may accept.
    ///
    /// # Errors
    /// The old server continues by itself.
    pub(crate) async fn report_ready(
        self,
        taken: &[ListenAddr],
    ) -> Result<ServingReporter, String> {
        let say = |error| format!("the previous server: {error}");
        let line = UpgradeChannel::new(self.socket).map_err(|error| error.to_string())?;
        let taken = taken.iter().cloned().map(AddressText);
        let ready = UpgradeMessage::Ready(taken.collect());
        let said = line.send(&ready, None).await;
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
        Ok(ServingReporter(line))
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

/// Permission to serve, after `go`; reports `serving`.
#[derive(Debug)]
pub(crate) struct ServingReporter(UpgradeChannel);

impl ServingReporter {
    /// Reports that every listener is served, and the admin address. Waits until the service
    /// manager knows this process, so that it accepts this process's notifications.
    ///
    /// # Errors
    /// The old server no longer reads.
    pub(crate) async fn report_serving(self, admin: Option<ListenAddr>) -> Result<(), String> {
        let serving = UpgradeMessage::Serving(admin.map(AddressText));
        self.0.send(&serving, None).await?;
        // A server that does not know this message, or has ended, closes the channel.
        let _ = clock::timeout(REPLY_TIMEOUT, self.0.receive()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> AddressText {
        AddressText(text.parse().unwrap())
    }

    #[test]
    fn every_word_is_read_as_it_was_said() {
        let socket = |role, is_lent, wanted| UpgradeMessage::Socket {
            listener: 3,
            role,
            is_lent,
            wanted: address(wanted),
        };
        for word in [
            UpgradeMessage::HELLO,
            UpgradeMessage::AppSize {
                name: "shop".to_owned(),
                processes: 5,
                threads: 3,
            },
            socket(ListenerRole::Http, false, ":80"),
            socket(ListenerRole::Tcp, false, "[::1]:9000"),
            socket(ListenerRole::Admin, true, "unix:/run/a folder/admin.sock"),
            socket(ListenerRole::Control, false, "unix:/run/penstock/80.sock"),
            socket(ListenerRole::Probes, false, ":9090"),
            UpgradeMessage::AdminTokenDigest([0xa5; 32]),
            UpgradeMessage::PublishSecret(PublishSecret([0xa5; 32])),
            UpgradeMessage::TicketKeys(SecretBytes(vec![0xa5; 60])),
            UpgradeMessage::Stderr,
            UpgradeMessage::End,
            UpgradeMessage::Ready(Vec::new()),
            UpgradeMessage::Ready(vec![address("127.0.0.1:0"), address("unix:/run/a b.sock")]),
            UpgradeMessage::Go,
            UpgradeMessage::Serving(None),
            UpgradeMessage::Serving(Some(address("unix:/run/a b.sock"))),
            UpgradeMessage::ManagerNotified,
        ] {
            let packet = serde_json::to_vec(&word).unwrap();
            assert_eq!(UpgradeMessage::parse(&packet), Ok(word));
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
        let (hello, weather, end) = (r#"{"hello":2}"#, r#"{"weather":"fine"}"#, r#""end""#);
        let size = r#"{"app_size":{"name":"a shop","processes":3,"threads":2}}"#;
        let old = met(&[hello, weather, size, end]).unwrap();
        let size = AppSize {
            processes: 3,
            threads: 2,
        };
        assert_eq!(old.app_sizes.get("a shop"), Some(&size));
        for (words, error) in [
            (&[hello, weather][..], "closed the channel"),
            (&[], "closed the channel"),
            (&[weather, hello, end], "unknown message"),
            (&[r#"{"hello":3}"#, end], "it uses protocol version 3"),
            (&[hello, r#""go""#], "unexpected message"),
            (&[end], "no protocol version was sent"),
        ] {
            let text = met(words).unwrap_err();
            assert!(text.contains(error), "{words:?}: {text}");
        }
    }

    #[test]
    fn a_changed_admin_address_is_read_from_the_sentence() {
        for admin in [
            None,
            Some(None),
            Some(Some(address("127.0.0.1:8091").0)),
            Some(Some(address("unix:/run/a b.sock").0)),
        ] {
            let text = UpgradeOutcome {
                pid: 7,
                new_admin: admin,
            }
            .to_string();
            assert!(text.starts_with("process 7 serves"));
            let again = UpgradeOutcome::parse_new_admin_address(&text);
            assert_eq!(
                UpgradeOutcome {
                    pid: 7,
                    new_admin: again
                }
                .to_string(),
                text
            );
        }
    }

    #[test]
    fn what_is_no_word_is_refused() {
        let socket = |role: &str, wanted: &str| {
            format!(
                r#"{{"socket":{{"listener":1,"role":"{role}","is_lent":false,"wanted":"{wanted}"}}}}"#
            )
        };
        assert!(UpgradeMessage::parse(socket("http", ":80").as_bytes()).is_ok());
        for text in [
            "",
            "hello",
            r#""hello""#,
            r#"{"hello":1}"#,
            r#"{"socket":{}}"#,
            &socket("ftp", ":80"),
            &socket("http", "nowhere"),
            r#"{"ready":["nowhere"]}"#,
            r#"{"serving":"nowhere"}"#,
            r#"{"admin_token_digest":[1,2]}"#,
            r#""stay""#,
        ] {
            assert!(UpgradeMessage::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
