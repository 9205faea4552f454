//! Changes of the servers of upstreams for the admin API.
//!
//! # Invariants
//! - An address is read as in the configuration.
//! - A change is made completely or refused with the reason.

use penstock_config::{ServerAddr, UpstreamServer};
use penstock_proxy::{ServerChange, Upstream};
use penstock_status::{ChangeError, NewServer, ServerChangeRequest};

/// Makes a change of an upstream's servers. The servers of an application are its processes.
pub(super) fn manage_upstream(
    upstream: &Upstream,
    change: ServerChangeRequest,
    is_app: bool,
) -> Result<String, ChangeError> {
    if is_app && is_supervisor_only(&change) {
        let why = format!(
            "the servers of {} are the application's processes: they come and go with them",
            upstream.name()
        );
        return Err(ChangeError::conflict(why));
    }
    let done = upstream.apply_change(server_change(change)?);
    // The log must show why servers came and went.
    if let Ok(message) = &done {
        log::info!("admin: upstream {}: {message}", upstream.name());
    }
    done.map_err(|error| match error {
        penstock_proxy::ServerChangeError::NoSuchServer(server) => ChangeError::not_found(format!(
            "upstream {} has no server {server}",
            upstream.name()
        )),
        other => ChangeError::conflict(other.to_string()),
    })
}

/// Whether the change adds or removes a server, which only the supervisor does for an application.
fn is_supervisor_only(change: &ServerChangeRequest) -> bool {
    matches!(
        change,
        ServerChangeRequest::Add(_) | ServerChangeRequest::Remove { .. }
    )
}

/// Converts a request into a change. A server is named as in the status or as in the configuration.
fn server_change(change: ServerChangeRequest) -> Result<ServerChange, ChangeError> {
    Ok(match change {
        ServerChangeRequest::Add(new) => ServerChange::Add(new_server(new)?),
        ServerChangeRequest::Remove { server } => ServerChange::Remove(server),
        ServerChangeRequest::Drain { server } => ServerChange::Drain(server),
        ServerChangeRequest::Disable { server } => ServerChange::Disable(server),
        ServerChangeRequest::Enable { server } => ServerChange::Enable(server),
        ServerChangeRequest::Weight { server, weight } => {
            ServerChange::SetWeight(server, weight.get().into())
        }
        ServerChangeRequest::MaxActive { server, max_active } => {
            ServerChange::SetMaxActive(server, max_active.map(Into::into))
        }
    })
}

fn new_server(new: NewServer) -> Result<UpstreamServer, ChangeError> {
    let address = match new.server.parse() {
        // A relative path has no base here.
        Ok(ServerAddr::Unix(path)) if path.is_relative() => None,
        parsed => parsed.ok(),
    };
    let address = address.ok_or_else(|| {
        let (server, expected) = (&new.server, ServerAddr::EXPECTED);
        ChangeError::bad_request(format!("{server:?} is no server: expected {expected}"))
    })?;
    Ok(UpstreamServer {
        address,
        weight: new.weight.get().into(),
        max_active: new.max_active.map(Into::into),
        backup: new.backup,
    })
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
                ServerChange::SetWeight(name(), 1),
            ),
            (
                ServerChangeRequest::MaxActive {
                    server: name(),
                    max_active: NonZeroU32::new(3),
                },
                ServerChange::SetMaxActive(name(), Some(3)),
            ),
            (
                ServerChangeRequest::MaxActive {
                    server: name(),
                    max_active: None,
                },
                ServerChange::SetMaxActive(name(), None),
            ),
        ] {
            let is_refused = matches!(expected, ServerChange::Add(_) | ServerChange::Remove(_));
            assert_eq!(is_supervisor_only(&wish), is_refused, "{wish:?}");
            assert_eq!(server_change(wish), Ok(expected));
        }
    }
}
