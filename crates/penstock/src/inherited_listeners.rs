//! Listening sockets that were passed to this process, by the previous server (`upgrade_protocol`)
//! or by a service manager (`service_manager`).
//!
//! Used by `listeners` before it opens sockets.
//!
//! # Invariants
//!
//! - Each socket is used once.
//! - Every socket of a used listener is served, even with fewer loops, so that no connection stays
//!   in its queue.

use std::os::fd::OwnedFd;

use penstock_config::ListenAddr;
use penstock_sys::fd_packets::ListenAddress;

/// The purpose of a listener.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ListenerRole {
    Http,
    Tcp,
    Admin,
    /// The command line.
    Control,
    /// Probes and Prometheus.
    Probes,
}

impl ListenerRole {
    /// Whether a reload may open and close such listeners.
    pub(crate) fn is_for_clients(self) -> bool {
        matches!(self, Self::Http | Self::Tcp)
    }
}

#[derive(Debug)]
pub(crate) struct InheritedListener {
    /// The previous role and configured address; `None` if unknown.
    pub(crate) configured: Option<(ListenerRole, ListenAddr)>,
    pub(crate) bound_address: ListenAddress,
    /// The name in messages.
    pub(crate) name: String,
    /// One, or one for each loop of the previous server.
    pub(crate) sockets: Vec<OwnedFd>,
    /// Whether another process owns the socket's file.
    pub(crate) is_borrowed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct InheritedListeners {
    remaining: Vec<InheritedListener>,
    /// The configured addresses of all listeners, used or not.
    configured_addresses: Vec<ListenAddr>,
    /// The configured addresses of used listeners.
    taken_addresses: Vec<ListenAddr>,
}

impl InheritedListeners {
    pub(crate) fn new(listeners: Vec<InheritedListener>) -> Self {
        let known = listeners.iter().filter_map(|one| one.configured.as_ref());
        let addresses = known.map(|(_, wanted)| wanted.clone()).collect();
        Self {
            remaining: listeners,
            configured_addresses: addresses,
            taken_addresses: Vec::new(),
        }
    }

    /// Takes the sockets for a configured address: those with the same role and configured address
    /// first, else those bound to it.
    pub(crate) fn take(
        &mut self,
        role: ListenerRole,
        wanted: &ListenAddr,
    ) -> Option<InheritedListener> {
        let in_role =
            |one: &InheritedListener| one.configured.as_ref() == Some(&(role, wanted.clone()));
        let same = |one: &InheritedListener| match &one.configured {
            Some((_, known)) => known == wanted && !is_port_zero(wanted),
            None => is_bound_address(&one.bound_address, wanted),
        };
        let at = self.remaining.iter().position(in_role);
        let at = at.or_else(|| self.remaining.iter().position(same))?;
        self.taken_addresses.push(wanted.clone());
        // In the order of the configuration: port 0 may be there several times.
        Some(self.remaining.remove(at))
    }

    /// The configured address of the sockets with that role, if any.
    pub(crate) fn configured_address(&self, role: ListenerRole) -> Option<ListenAddr> {
        let mut known = self
            .remaining
            .iter()
            .filter_map(|one| one.configured.as_ref());
        known.find(|(of, _)| *of == role).map(|(_, at)| at.clone())
    }

    /// Whether an inherited listener, used or not, overlaps `wanted`.
    pub(crate) fn overlaps(&self, wanted: &ListenAddr) -> bool {
        self.configured_addresses
            .iter()
            .any(|other| other.overlaps(wanted))
    }

    pub(crate) fn unclaimed_names(&self) -> Vec<&str> {
        self.remaining.iter().map(|one| one.name.as_str()).collect()
    }

    /// The configured addresses with used sockets.
    pub(crate) fn taken_addresses(&self) -> &[ListenAddr] {
        &self.taken_addresses
    }
}

fn is_port_zero(wanted: &ListenAddr) -> bool {
    match wanted {
        ListenAddr::Tcp(address) => address.port() == 0,
        ListenAddr::Port(port) => *port == 0,
        ListenAddr::Unix(_) => false,
    }
}

/// Whether a socket is bound to a configured address. A socket for IPv6 and IPv4 on all addresses,
/// as service managers make them for a bare port, matches `:80` too.
fn is_bound_address(bound: &ListenAddress, wanted: &ListenAddr) -> bool {
    match (bound, wanted) {
        (ListenAddress::Tcp { address, is_dual }, ListenAddr::Tcp(wanted)) => {
            let is_every = address.ip().is_unspecified() && wanted.ip().is_unspecified();
            address == wanted || (*is_dual && is_every && address.port() == wanted.port())
        }
        (ListenAddress::Tcp { address, is_dual }, ListenAddr::Port(port)) => {
            // A socket for IPv4 alone is what the manager was configured to make.
            let is_every = address.ip().is_unspecified() && (*is_dual || address.is_ipv4());
            is_every && address.port() == *port
        }
        (ListenAddress::Unix(path), ListenAddr::Unix(wanted)) => path == wanted,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> ListenAddr {
        text.parse().unwrap()
    }

    fn listener(
        known: Option<(ListenerRole, &str)>,
        address: &str,
        is_dual: bool,
    ) -> InheritedListener {
        InheritedListener {
            configured: known.map(|(role, wanted)| (role, tcp(wanted))),
            bound_address: ListenAddress::Tcp {
                address: address.parse().unwrap(),
                is_dual,
            },
            name: address.to_owned(),
            sockets: Vec::new(),
            is_borrowed: false,
        }
    }

    #[test]
    fn each_listener_gets_its_own_back_even_where_any_port_will_do() {
        let any = "127.0.0.1:0";
        let mut all = InheritedListeners::new(vec![
            listener(Some((ListenerRole::Admin, any)), "127.0.0.1:2", false),
            listener(Some((ListenerRole::Http, any)), "127.0.0.1:1", false),
        ]);
        let taken = |listener: Option<InheritedListener>| listener.map(|it| it.name);
        assert_eq!(
            taken(all.take(ListenerRole::Http, &tcp(any))).unwrap(),
            "127.0.0.1:1"
        );
        assert_eq!(taken(all.take(ListenerRole::Http, &tcp(any))), None);
        assert_eq!(
            taken(all.take(ListenerRole::Admin, &tcp(any))).unwrap(),
            "127.0.0.1:2"
        );
        assert_eq!(all.taken_addresses().len(), 2);
    }

    #[test]
    fn an_address_goes_over_to_another_role() {
        let mut all = InheritedListeners::new(vec![listener(
            Some((ListenerRole::Http, "127.0.0.1:80")),
            "127.0.0.1:80",
            false,
        )]);
        assert!(all.overlaps(&tcp(":80")) && !all.overlaps(&tcp(":81")));
        assert!(all.take(ListenerRole::Tcp, &tcp(":80")).is_none());
        assert_eq!(all.unclaimed_names(), ["127.0.0.1:80"]);
        assert!(all.take(ListenerRole::Tcp, &tcp("127.0.0.1:80")).is_some());
        assert!(all.unclaimed_names().is_empty());
    }

    #[test]
    fn a_managers_socket_is_known_by_where_it_is_bound() {
        let rows = [
            ("127.0.0.1:80", false, "127.0.0.1:80", true),
            ("127.0.0.1:80", false, ":80", false),
            ("[::]:80", true, ":80", true),
            ("[::]:80", true, "0.0.0.0:80", true),
            ("0.0.0.0:80", false, ":80", true),
            ("[::]:81", true, ":80", false),
            ("[::]:80", false, ":80", false),
            ("[::]:80", true, "127.0.0.1:80", false),
            ("[::]:80", true, "[::]:80", true),
        ];
        for (bound, is_dual, wanted, is_its) in rows {
            let mut all = InheritedListeners::new(vec![listener(None, bound, is_dual)]);
            let taken = all.take(ListenerRole::Http, &tcp(wanted)).is_some();
            assert_eq!(taken, is_its, "{bound} {is_dual} {wanted}");
        }
    }
}
