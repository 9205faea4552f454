//! Upstreams as the admin interface sees and changes them: `proxy`'s words in `status`'s, and back.
//!
//! Called by `source`, for each snapshot and for each change that is asked for. What must stay true: an
//! address is read as the configuration reads it, and a change is made whole or refused with the
//! reason.

use penstock_config::{ServerAddr, UpstreamServer};
use penstock_proxy::{ServerChange, ServerSnapshot, Upstream, UpstreamSnapshot};
use penstock_status::{
    NewServer, ServerChangeRequest, ServerChangeRequestError, ServerStatus, UpstreamCounters,
    UpstreamQueueStatus, UpstreamStatus,
};

/// Makes one change of the upstream's servers, which of an application are its processes.
pub(super) fn manage_upstream(
    upstream: &Upstream,
    change: ServerChangeRequest,
    is_app: bool,
) -> Result<String, ServerChangeRequestError> {
    if is_app && is_supervisor_only(&change) {
        let why = format!(
            "the servers of {} are the application's processes: they come and go with them",
            upstream.name()
        );
        return Err(ServerChangeRequestError::Rejected(why));
    }
    let done = upstream.apply_change(server_change(change)?);
    // Whoever reads the log later must see why servers came and went.
    if let Ok(message) = &done {
        log::info!("admin: upstream {}: {message}", upstream.name());
    }
    done.map_err(|error| match error {
        penstock_proxy::ServerChangeError::NoSuchServer(server) => {
            ServerChangeRequestError::UnknownServer {
                upstream: upstream.name().to_owned(),
                server,
            }
        }
        other => ServerChangeRequestError::Rejected(other.to_string()),
    })
}

/// Whether it says which servers there are, which of an application only its supervisor says.
fn is_supervisor_only(change: &ServerChangeRequest) -> bool {
    matches!(
        change,
        ServerChangeRequest::Add(_) | ServerChangeRequest::Remove { .. }
    )
}

/// The wish in the words of `proxy`. A server that is there goes by the name that the status shows, or
/// by the one that its entry in the configuration has.
fn server_change(change: ServerChangeRequest) -> Result<ServerChange, ServerChangeRequestError> {
    Ok(match change {
        ServerChangeRequest::Add(new) => ServerChange::Add(new_server(new)?),
        ServerChangeRequest::Remove { server } => ServerChange::Remove(server),
        ServerChangeRequest::Drain { server } => ServerChange::Drain(server),
        ServerChangeRequest::Disable { server } => ServerChange::Disable(server),
        ServerChangeRequest::Enable { server } => ServerChange::Enable(server),
        ServerChangeRequest::Weight { server, weight } => {
            ServerChange::Weight(server, weight.get().into())
        }
        ServerChangeRequest::MaxActive { server, max_active } => {
            ServerChange::MaxActive(server, max_active.map(Into::into))
        }
    })
}

fn new_server(new: NewServer) -> Result<UpstreamServer, ServerChangeRequestError> {
    let address = match new.server.parse() {
        // There is no file that it could be relative to.
        Ok(ServerAddr::Unix(path)) if path.is_relative() => None,
        parsed => parsed.ok(),
    };
    let address = address.ok_or(ServerChangeRequestError::InvalidAddress {
        server: new.server,
        expected: ServerAddr::EXPECTED,
    })?;
    Ok(UpstreamServer {
        address,
        weight: new.weight.get().into(),
        max_active: new.max_active.map(Into::into),
        backup: new.backup,
    })
}

/// An upstream in the words of `status`.
pub(super) fn upstream_status(upstream: UpstreamSnapshot) -> UpstreamStatus {
    let counts = upstream.counters;
    UpstreamStatus {
        name: upstream.name,
        protocol: upstream.protocol.to_owned(),
        up: upstream.is_up,
        queue: UpstreamQueueStatus {
            length: upstream.waiting,
            max: upstream.max_queued,
            oldest_wait: upstream.oldest_wait,
        },
        counters: UpstreamCounters {
            requests: counts.requests,
            queue_full: counts.queue_full,
            queue_timeouts: counts.queue_timeouts,
            queue_abandoned: counts.queue_abandoned,
            unavailable: counts.unavailable,
            retries: counts.retries,
            retries_over_budget: counts.retries_over_budget,
        },
        queue_time: upstream.queue_time,
        connect_time: upstream.connect_time,
        header_time: upstream.header_time,
        servers: upstream.servers.into_iter().map(server_status).collect(),
    }
}

fn server_status(server: ServerSnapshot) -> ServerStatus {
    ServerStatus {
        name: server.name,
        state: server.state.to_owned(),
        weight: server.weight,
        backup: server.backup,
        active: server.active,
        max_active: server.max_active,
        connections_open: server.connections_open,
        connections_idle: server.connections_idle,
        requests: server.requests,
        failures: server.failures,
        timeouts: server.timeouts,
        connects: server.connects,
        connection_reuses: server.connection_reuses,
        last_error: server.last_probe_error,
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU16, NonZeroU32};

    use super::*;

    fn new_at(server: &str) -> NewServer {
        NewServer {
            server: server.to_owned(),
            weight: NonZeroU16::MIN,
            max_active: None,
            backup: false,
        }
    }

    #[test]
    fn a_new_server_is_read_as_the_configuration_reads_it() {
        for (server, is_one) in [
            ("127.0.0.1:3000", true),
            ("[::1]:3000", true),
            ("app.example:3000", true),
            ("unix:/run/app.sock", true),
            ("unix:app.sock", false),
            ("127.0.0.1", false),
            ("127.0.0.1:0", false),
            ("http://127.0.0.1:3000", false),
            ("", false),
        ] {
            match server_change(ServerChangeRequest::Add(new_at(server))) {
                Ok(ServerChange::Add(added)) => {
                    assert!(is_one, "{server}");
                    assert_eq!(added, UpstreamServer::new(server.parse().unwrap()));
                }
                Err(error) => {
                    assert!(!is_one, "{server}: {error}");
                    assert!(error.to_string().contains("expected an address"), "{error}");
                }
                other => panic!("{server}: {other:?}"),
            }
        }
    }

    #[test]
    fn each_wish_becomes_the_change_of_that_name_with_all_that_it_says() {
        let name = || "127.0.0.1:3000".to_owned();
        let new = NewServer {
            weight: NonZeroU16::MAX,
            max_active: NonZeroU32::new(7),
            backup: true,
            ..new_at(&name())
        };
        let added = UpstreamServer {
            address: name().parse().unwrap(),
            weight: 65_535,
            max_active: Some(7),
            backup: true,
        };
        for (wish, expected) in [
            (ServerChangeRequest::Add(new), ServerChange::Add(added)),
            (
                ServerChangeRequest::Remove { server: name() },
                ServerChange::Remove(name()),
            ),
            (
                ServerChangeRequest::Drain { server: name() },
                ServerChange::Drain(name()),
            ),
            (
                ServerChangeRequest::Disable { server: name() },
                ServerChange::Disable(name()),
            ),
            (
                ServerChangeRequest::Enable { server: name() },
                ServerChange::Enable(name()),
            ),
            (
                ServerChangeRequest::Weight {
                    server: name(),
                    weight: NonZeroU16::MIN,
                },
                ServerChange::Weight(name(), 1),
            ),
            (
                ServerChangeRequest::MaxActive {
                    server: name(),
                    max_active: NonZeroU32::new(3),
                },
                ServerChange::MaxActive(name(), Some(3)),
            ),
            (
                ServerChangeRequest::MaxActive {
                    server: name(),
                    max_active: None,
                },
                ServerChange::MaxActive(name(), None),
            ),
        ] {
            let is_refused = matches!(expected, ServerChange::Add(_) | ServerChange::Remove(_));
            assert_eq!(is_supervisor_only(&wish), is_refused, "{wish:?}");
            assert_eq!(server_change(wish), Ok(expected));
        }
    }
}
