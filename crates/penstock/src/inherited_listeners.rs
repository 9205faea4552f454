//! Listening sockets that this process was given instead of opening them: by the server before it
//! (`upgrade_protocol`), or by a service manager (`manager`).
//!
//! Used by `listeners` before it opens anything. What must stay true: each socket is taken once, and what
//! waits in the queue of one that was taken is served: none is left out because there are fewer loops.

use std::os::fd::OwnedFd;

use penstock_config::ListenAddr;
use penstock_sys::fd_packets::ListenAddress;

/// What a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerRole {
    /// Clients that speak HTTP.
    Http,
    /// Clients of a TCP stream.
    Tcp,
    /// The admin interface.
    Admin,
    /// The command line.
    Control,
    /// Probes and Prometheus.
    Probes,
}

/// The sockets of one listener.
#[derive(Debug)]
pub(crate) struct InheritedListener {
    /// What it was for, and the address as it was configured; none when nobody says so.
    pub(crate) configured: Option<(ListenerRole, ListenAddr)>,
    /// Where it listens.
    pub(crate) bound_address: ListenAddress,
    /// What it is called in a message.
    pub(crate) name: String,
    /// One, or one for each loop of those who had it.
    pub(crate) sockets: Vec<OwnedFd>,
    /// Whether its socket file belongs to somebody else.
    pub(crate) is_borrowed: bool,
}

/// All that were given.
#[derive(Debug, Default)]
pub(crate) struct InheritedListeners {
    remaining: Vec<InheritedListener>,
    /// The configured addresses of all there were, taken or not.
    configured_addresses: Vec<ListenAddr>,
    /// Those that were taken.
    taken_addresses: Vec<ListenAddr>,
}

impl InheritedListeners {
    pub(crate) fn new(given: Vec<InheritedListener>) -> Self {
        let known = given.iter().filter_map(|one| one.configured.as_ref());
        let addresses = known.map(|(_, wanted)| wanted.clone()).collect();
        Self {
            remaining: given,
            configured_addresses: addresses,
            taken_addresses: Vec::new(),
        }
    }

    /// The sockets for a configured address: those that were its own, in that role first, else those that
    /// are bound to it.
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
        Some(self.remaining.swap_remove(at))
    }

    /// The address that the sockets of that role were opened for, if there are any.
    pub(crate) fn configured_address(&self, role: ListenerRole) -> Option<ListenAddr> {
        let mut known = self
            .remaining
            .iter()
            .filter_map(|one| one.configured.as_ref());
        known.find(|(of, _)| *of == role).map(|(_, at)| at.clone())
    }

    /// Whether one who was given here, or still has it, listens where `wanted` would.
    pub(crate) fn overlaps(&self, wanted: &ListenAddr) -> bool {
        self.configured_addresses
            .iter()
            .any(|other| other.overlaps(wanted))
    }

    /// What nobody took, by name.
    pub(crate) fn unclaimed_names(&self) -> Vec<&str> {
        self.remaining.iter().map(|one| one.name.as_str()).collect()
    }

    /// The configured addresses whose sockets were taken.
    pub(crate) fn taken(&self) -> &[ListenAddr] {
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

/// Whether a socket is what a configured address means. One that takes IPv6 and IPv4 at every address, as
/// service managers make them for a port alone, is what `:80` means too.
fn is_bound_address(bound: &ListenAddress, wanted: &ListenAddr) -> bool {
    match (bound, wanted) {
        (ListenAddress::Tcp { address, is_dual }, ListenAddr::Tcp(wanted)) => {
            let is_every = address.ip().is_unspecified() && wanted.ip().is_unspecified();
            address == wanted || (*is_dual && is_every && address.port() == wanted.port())
        }
        (ListenAddress::Tcp { address, is_dual }, ListenAddr::Port(port)) => {
            // One of IPv4 alone is what a manager was told to make of it.
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

    fn given(
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
            given(Some((ListenerRole::Admin, any)), "127.0.0.1:2", false),
            given(Some((ListenerRole::Http, any)), "127.0.0.1:1", false),
        ]);
        let taken = |given: Option<InheritedListener>| given.map(|given| given.name);
        assert_eq!(
            taken(all.take(ListenerRole::Http, &tcp(any))).unwrap(),
            "127.0.0.1:1"
        );
        assert_eq!(taken(all.take(ListenerRole::Http, &tcp(any))), None);
        assert_eq!(
            taken(all.take(ListenerRole::Admin, &tcp(any))).unwrap(),
            "127.0.0.1:2"
        );
        assert_eq!(all.taken().len(), 2);
    }

    #[test]
    fn an_address_goes_over_to_another_role() {
        let mut all = InheritedListeners::new(vec![given(
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
            let mut all = InheritedListeners::new(vec![given(None, bound, is_dual)]);
            let taken = all.take(ListenerRole::Http, &tcp(wanted)).is_some();
            assert_eq!(taken, is_its, "{bound} {is_dual} {wanted}");
        }
    }
}
