//! Listening sockets that this process was given instead of opening them: by the server before it
//! (`succession`), or by a service manager (`manager`).
//!
//! Used by `listeners` before it opens anything. What must stay true: each socket is taken once, and what
//! waits in the queue of one that was taken is served: none is left out because there are fewer loops.

use std::os::fd::OwnedFd;

use penstock_config::ListenAddr;
use penstock_sys::fd_packets::ListenAddress;

/// What a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
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
pub(crate) struct Given {
    /// What it was for, and the address as it was configured; none when nobody says so.
    pub(crate) known: Option<(Role, ListenAddr)>,
    /// Where it listens.
    pub(crate) bound: ListenAddress,
    /// What it is called in a message.
    pub(crate) name: String,
    /// One, or one for each loop of those who had it.
    pub(crate) sockets: Vec<OwnedFd>,
    /// Whether its socket file belongs to somebody else.
    pub(crate) is_lent: bool,
}

/// All that were given.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    given: Vec<Given>,
    /// The configured addresses of all there were, taken or not.
    addresses: Vec<ListenAddr>,
    /// Those that were taken.
    taken: Vec<ListenAddr>,
}

impl Inherited {
    pub(crate) fn new(given: Vec<Given>) -> Self {
        let known = given.iter().filter_map(|one| one.known.as_ref());
        let addresses = known.map(|(_, wanted)| wanted.clone()).collect();
        Self {
            given,
            addresses,
            taken: Vec::new(),
        }
    }

    /// The sockets for a configured address: those that were its own, in that role first, else those that
    /// are bound to it.
    pub(crate) fn take(&mut self, role: Role, wanted: &ListenAddr) -> Option<Given> {
        let in_role = |one: &Given| one.known.as_ref() == Some(&(role, wanted.clone()));
        let same = |one: &Given| match &one.known {
            Some((_, known)) => known == wanted && !is_any_port(wanted),
            None => is_bound_to(&one.bound, wanted),
        };
        let at = self.given.iter().position(in_role);
        let at = at.or_else(|| self.given.iter().position(same))?;
        self.taken.push(wanted.clone());
        Some(self.given.swap_remove(at))
    }

    /// The address that the sockets of that role were opened for, if there are any.
    pub(crate) fn address_of(&self, role: Role) -> Option<ListenAddr> {
        let mut known = self.given.iter().filter_map(|one| one.known.as_ref());
        known.find(|(of, _)| *of == role).map(|(_, at)| at.clone())
    }

    /// Whether one who was given here, or still has it, listens where `wanted` would.
    pub(crate) fn overlaps(&self, wanted: &ListenAddr) -> bool {
        self.addresses.iter().any(|other| other.overlaps(wanted))
    }

    /// What nobody took, by name.
    pub(crate) fn left(&self) -> Vec<&str> {
        self.given.iter().map(|one| one.name.as_str()).collect()
    }

    /// The configured addresses whose sockets were taken.
    pub(crate) fn taken(&self) -> &[ListenAddr] {
        &self.taken
    }
}

fn is_any_port(wanted: &ListenAddr) -> bool {
    match wanted {
        ListenAddr::Tcp(address) => address.port() == 0,
        ListenAddr::Port(port) => *port == 0,
        ListenAddr::Unix(_) => false,
    }
}

/// Whether a socket is what a configured address means. One that takes IPv6 and IPv4 at every address, as
/// service managers make them for a port alone, is what `:80` means too.
fn is_bound_to(bound: &ListenAddress, wanted: &ListenAddr) -> bool {
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

    fn given(known: Option<(Role, &str)>, address: &str, is_dual: bool) -> Given {
        Given {
            known: known.map(|(role, wanted)| (role, tcp(wanted))),
            bound: ListenAddress::Tcp {
                address: address.parse().unwrap(),
                is_dual,
            },
            name: address.to_owned(),
            sockets: Vec::new(),
            is_lent: false,
        }
    }

    #[test]
    fn each_listener_gets_its_own_back_even_where_any_port_will_do() {
        let any = "127.0.0.1:0";
        let mut all = Inherited::new(vec![
            given(Some((Role::Admin, any)), "127.0.0.1:2", false),
            given(Some((Role::Http, any)), "127.0.0.1:1", false),
        ]);
        let taken = |given: Option<Given>| given.map(|given| given.name);
        assert_eq!(
            taken(all.take(Role::Http, &tcp(any))).unwrap(),
            "127.0.0.1:1"
        );
        assert_eq!(taken(all.take(Role::Http, &tcp(any))), None);
        assert_eq!(
            taken(all.take(Role::Admin, &tcp(any))).unwrap(),
            "127.0.0.1:2"
        );
        assert_eq!(all.taken().len(), 2);
    }

    #[test]
    fn an_address_goes_over_to_another_role() {
        let mut all = Inherited::new(vec![given(
            Some((Role::Http, "127.0.0.1:80")),
            "127.0.0.1:80",
            false,
        )]);
        assert!(all.overlaps(&tcp(":80")) && !all.overlaps(&tcp(":81")));
        assert!(all.take(Role::Tcp, &tcp(":80")).is_none());
        assert_eq!(all.left(), ["127.0.0.1:80"]);
        assert!(all.take(Role::Tcp, &tcp("127.0.0.1:80")).is_some());
        assert!(all.left().is_empty());
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
            let mut all = Inherited::new(vec![given(None, bound, is_dual)]);
            let taken = all.take(Role::Http, &tcp(wanted)).is_some();
            assert_eq!(taken, is_its, "{bound} {is_dual} {wanted}");
        }
    }
}
