//! The limits, machine figures and publications of the hub for the admin API.
//!
//! # Invariants
//! - Nothing here waits.

use penstock_grip::parse_publications;
use penstock_hub::{Hub, HubError, NamespaceError};
use penstock_status::{LimitStatus, MachineStatus, PublishError};
use penstock_tokens::TokenError;

use crate::hub_service::HubService;

/// Kernel memory of an idle TCP connection: socket, inode, file, directory entry and epoll entry.
/// Measured with half a million connections; socket buffers are not included.
const BYTES_PER_SOCKET: u64 = 4_100;

/// The size of a page in the kernel's count of socket buffers.
const PAGE_BYTES: u64 = 4_096;

/// A body may have several messages, and JSON makes each longer.
const MAX_MESSAGES_PER_BODY: usize = 4;

/// The limits of the hub by their configuration keys.
pub(super) fn hub_limits(hub: &Hub) -> [LimitStatus; 9] {
    let (counts, settings) = (hub.snapshot(), hub.settings());
    let streams_max = settings.max_streams.unwrap_or_default() as u64;
    let channels_max = settings.max_channels as u64;
    let of_client = settings.max_streams_per_client.unwrap_or_default() as u64;
    let of_a_stream = settings.max_channels_per_stream as u64;
    [
        LimitStatus::count(
            "hub.max_streams",
            streams_max,
            Some(counts.connections.used),
        )
        .with_reached(counts.refused_streams),
        LimitStatus::count(
            "hub.max_streams_per_client",
            of_client,
            Some(counts.max_streams_of_one_client),
        )
        .with_reached(counts.refused_client_streams),
        LimitStatus::count("hub.max_channels", channels_max, Some(counts.channels.used)),
        LimitStatus::count("hub.max_channels_per_stream", of_a_stream, None),
        LimitStatus::bytes("hub.max_message_size", settings.max_message_size as u64),
        LimitStatus::bytes("hub.max_backlog", settings.max_backlog as u64),
        LimitStatus::bytes("hub.max_backlog_total", settings.max_backlog_total as u64),
        LimitStatus::time("hub.send_timeout", settings.send_timeout),
        LimitStatus::time("hub.drain_timeout", settings.drain_timeout),
    ]
}

/// The figures of the machine, with `connections` of this server.
pub(super) fn machine_status(connections: u64) -> MachineStatus {
    MachineStatus {
        load_average: read_proc_file("/proc/loadavg")
            .as_deref()
            .and_then(parse_load_average),
        estimated_socket_bytes: connections * BYTES_PER_SOCKET,
        tcp_buffer_bytes: read_proc_file("/proc/net/sockstat")
            .as_deref()
            .and_then(parse_tcp_buffer_bytes),
    }
}

/// The namespace whose publish key signed this token.
pub(super) fn verify_publisher(
    hub_service: &HubService,
    token: &str,
) -> Result<String, PublishError> {
    let found = hub_service
        .publish_keys
        .verify(token, &hub_service.namespaces());
    let found = found.map_err(|error| {
        let refuse = match error {
            // The signature is valid.
            TokenError::Expired
            | TokenError::NotYetValid
            | TokenError::NoExpiry
            | TokenError::WrongIssuer(_) => PublishError::InvalidToken,
            _ => PublishError::Unauthorized,
        };
        refuse(format!(
            "{error}: publish with the key of GRIP_URL, which the workers of an application with \
             `grip` find in their environment"
        ))
    })?;
    Ok(found.name().to_owned())
}

/// Publishes the items of a body in their order, only in `namespace` if there is one.
pub(super) fn publish_body(
    hub_service: &HubService,
    body: &[u8],
    namespace: Option<&str>,
) -> Result<(), PublishError> {
    let (hub, namespaces) = (&hub_service.hub, hub_service.namespaces());
    // A reload may have removed it since the token was verified.
    let own = namespace.map(|name| namespaces.resolve(Some(name)));
    let own = own.transpose();
    let own = own.map_err(|error| PublishError::Unauthorized(error.to_string()))?;
    let items = parse_publications(body, |name| match (&own, name) {
        (None, name) => namespaces.resolve(name),
        (Some(own), Some(name)) if name != own.name() => {
            Err(NamespaceError::OtherNamespace(own.name().to_owned()))
        }
        (Some(own), _) => Ok(own.clone()),
    });
    let items = items.map_err(|error| PublishError::Malformed(error.to_string()))?;
    for (number, item) in items.into_iter().enumerate() {
        hub.publish(item).map_err(|refused| {
            let text = format!("items[{number}]: {refused}");
            match refused {
                HubError::MessageTooLarge(_) => PublishError::TooLarge(text),
                HubError::InvalidMessageId(_) => PublishError::Malformed(text),
                HubError::DeliveryBacklogFull(_) | HubError::NamespaceDeliveryBacklogFull(_) => {
                    PublishError::RateLimited(text)
                }
                _ => PublishError::Unavailable(text),
            }
        })?;
    }
    Ok(())
}

/// The maximum size of a body.
pub(super) fn max_publish_bytes(hub: &Hub) -> usize {
    let one = hub.settings().max_message_size;
    one.saturating_mul(MAX_MESSAGES_PER_BODY)
}

/// Reads a file of procfs.
#[expect(clippy::disallowed_methods, reason = "there is no disk behind it")]
fn read_proc_file(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The first number of `/proc/loadavg`.
fn parse_load_average(text: &str) -> Option<f64> {
    text.split(' ').next()?.parse().ok()
}

/// The pages of the line `TCP: inuse 35 orphan 0 tw 7 alloc 35 mem 204`, in bytes.
fn parse_tcp_buffer_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    let mut words = line.split(' ');
    words.find(|word| *word == "mem")?;
    let pages: u64 = words.next()?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_says() {
        let text = "sockets: used 93\nTCP: inuse 35 orphan 0 tw 7431 alloc 35 mem 204\nUDP: inuse 0 mem 7\n";
        assert_eq!(parse_tcp_buffer_bytes(text), Some(204 * 4096));
        assert_eq!(parse_tcp_buffer_bytes("TCP: inuse 35\n"), None);
        assert_eq!(parse_tcp_buffer_bytes("UDP: inuse 0 mem 7\n"), None);
        assert_eq!(
            parse_load_average("0.52 0.58 0.59 1/467 12345\n"),
            Some(0.52)
        );
        assert_eq!(parse_load_average(""), None);
    }

    #[test]
    fn this_machine_says_something() {
        let machine = machine_status(3);
        assert!(machine.load_average.is_some_and(|load| load >= 0.0));
        assert!(machine.tcp_buffer_bytes.is_some());
        assert_eq!(machine.estimated_socket_bytes, 3 * BYTES_PER_SOCKET);
    }
}
