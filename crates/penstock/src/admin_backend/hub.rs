//! The hub as the admin interface sees it and publishes to it: `hub`'s words in `status`'s, and back.
//!
//! Called by `source`, for each snapshot and for each body that is to be published. What must stay true:
//! nothing here waits; the kernel's share is an estimate and is called one.

use penstock_cluster::RedisBus;
use penstock_grip::parse_publications;
use penstock_hub::token::TokenError;
use penstock_hub::{Hub, HubError, NamespaceError};
use penstock_status::{
    ClusterStatus, HubCounters, HubStatus, LimitStatus, MachineStatus, PublishError, Usage,
};

use crate::hub_service::HubService;

/// What the kernel keeps for one TCP connection that is held and takes what it is sent: socket, inode,
/// file, directory entry, entry in an epoll set. Measured with half a million of them; data that waits
/// in it comes on top.
const BYTES_PER_SOCKET: u64 = 4_100;

/// What a page of memory has on every machine that this runs on, in the kernel's count of buffers.
const PAGE_BYTES: u64 = 4_096;

/// So few streams share what the hub has anyway that a figure for one would mislead.
const MIN_STREAMS_FOR_AVERAGE: u64 = 500;

/// A body may have several messages, and JSON makes each longer.
const MAX_MESSAGES_PER_BODY: usize = 4;

/// The hub at this moment.
pub(super) fn hub_status(held: &HubService) -> HubStatus {
    let hub = &held.hub;
    let (counts, bounds) = (hub.counters(), hub.settings());
    let of = |used, max: usize| Usage {
        used,
        max: max as u64,
    };
    HubStatus {
        connections: of(counts.held, bounds.max_streams.unwrap_or_default()),
        streams: counts.streams,
        long_polls: counts.long_polls,
        channels: of(counts.channels, bounds.max_channels),
        counters: HubCounters {
            opened: counts.opened,
            closed: counts.closed,
            closed_slow: counts.closed_as_slow,
            published: counts.published,
            delivered: counts.delivered,
            dropped: counts.dropped,
            heartbeats: counts.heartbeats,
        },
        stream_bytes: counts.stream_bytes,
        bytes_per_stream: (counts.streams >= MIN_STREAMS_FOR_AVERAGE)
            .then(|| counts.stream_bytes / counts.streams.max(1)),
        backlog_bytes: of(counts.backlog_bytes, bounds.max_backlog_total),
        history_bytes: of(counts.history_bytes, bounds.history.max_size_total),
        cluster: held.bus().map(cluster_status),
    }
}

/// The servers that are one hub with this one.
fn cluster_status(bus: &RedisBus) -> ClusterStatus {
    let (status, totals) = (bus.status(), bus.totals());
    ClusterStatus {
        address: bus.address().to_owned(),
        connected: status.is_connected,
        standalone: status.is_standalone,
        queued: status.unsent_messages as u64,
        lost: status.dropped_messages,
        channels: status.followed_channels as u64,
        servers: totals.nodes,
        totals: totals.sums,
    }
}

/// The hub's bounds by their configured names.
pub(super) fn hub_limits(hub: &Hub) -> [LimitStatus; 9] {
    let (counts, bounds) = (hub.counters(), hub.settings());
    let streams_max = bounds.max_streams.unwrap_or_default() as u64;
    let channels_max = bounds.max_channels as u64;
    let of_client = bounds.max_streams_per_client.unwrap_or_default() as u64;
    let of_a_stream = bounds.max_channels_per_stream as u64;
    [
        LimitStatus::count("hub.max_streams", streams_max, Some(counts.held))
            .with_reached(counts.refused_streams),
        LimitStatus::count(
            "hub.max_streams_per_client",
            of_client,
            Some(counts.max_streams_of_one_client),
        )
        .with_reached(counts.refused_client_streams),
        LimitStatus::count("hub.max_channels", channels_max, Some(counts.channels)),
        LimitStatus::count("hub.max_channels_per_stream", of_a_stream, None),
        LimitStatus::bytes("hub.max_message_size", bounds.max_message_size as u64),
        LimitStatus::bytes("hub.max_backlog", bounds.max_backlog as u64),
        LimitStatus::bytes("hub.max_backlog_total", bounds.max_backlog_total as u64),
        LimitStatus::time("hub.send_timeout", bounds.send_timeout),
        LimitStatus::time("hub.drain_timeout", bounds.drain_timeout),
    ]
}

/// The machine with so many connections of ours.
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
pub(super) fn verify_publisher(held: &HubService, token: &str) -> Result<String, PublishError> {
    let found = held.keys().verify(token, &held.namespaces());
    let found = found.map_err(|error| {
        let refuse = match error {
            // Signed with a key of ours.
            TokenError::Expired
            | TokenError::NotYetValid
            | TokenError::NoExpiry
            | TokenError::WrongIssuer(_) => PublishError::Invalid,
            _ => PublishError::Unauthorized,
        };
        refuse(format!(
            "{error}: publish with the key of GRIP_URL, which the workers of an application with \
             `grip` find in their environment"
        ))
    })?;
    Ok(found.name().to_owned())
}

/// Publishes what a body asks for, in its order: for a publisher of a namespace in that one alone.
pub(super) fn publish_body(
    held: &HubService,
    body: &[u8],
    namespace: Option<&str>,
) -> Result<(), PublishError> {
    let (hub, namespaces) = (&held.hub, held.namespaces());
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
                HubError::DeliveryBehind(_) | HubError::BehindOfNamespace(_) => {
                    PublishError::TooFast(text)
                }
                _ => PublishError::Rejected(text),
            }
        })?;
    }
    Ok(())
}

/// How much of a body is read.
pub(super) fn max_publish_bytes(hub: &Hub) -> usize {
    let one = hub.settings().max_message_size;
    one.saturating_mul(MAX_MESSAGES_PER_BODY)
}

/// A file that the kernel makes as it is read.
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
