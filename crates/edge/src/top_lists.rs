//! Which routes and which clients have sent most requests lately, for the status.
//!
//! Each loop counts what it receives in lists of its own ([`TopList`]); a snapshot merges them. A
//! request costs two look-ups; `server.top_lists = false` saves them.
//!
//! # Invariants
//! - The memory is bounded, whatever clients send.
//! - A client counts by the prefix of its address, as everywhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use penstock_exchange::AddressPrefix;
use penstock_exchange::metrics::top_list::{TopList, merge_top_lists};
use penstock_runtime::loops;
use penstock_sys::net::PeerAddress;

use crate::router::{Route, RouteTable};

/// The most routes and clients of a snapshot.
const MAX_SHOWN: usize = 20;

/// The lists of all loops.
#[derive(Debug)]
pub(crate) struct TopLists {
    is_on: AtomicBool,
    /// Each is its loop's; only a snapshot takes it from another thread.
    by_loop: Box<[Mutex<LoopLists>]>,
}

#[derive(Debug, Default)]
struct LoopLists {
    /// Routes by their address, which costs nothing to find. A new table has other ones.
    routes: TopList<usize>,
    clients: TopList<u64>,
}

/// The most frequent routes and clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopSnapshot {
    /// Requests lately: each counts half after a minute.
    pub requests: u64,
    /// Routes by hosts and path with their requests, at most; the most frequent first.
    pub routes: Vec<(String, u64)>,
    /// Clients by address, or network of 64 bits, with their requests, at most; the most frequent
    /// first.
    pub clients: Vec<(String, u64)>,
}

impl TopLists {
    pub(crate) fn new(loops: usize) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            by_loop: (0..loops.max(1)).map(|_| Mutex::default()).collect(),
        }
    }

    /// Switches the lists, and forgets the routes of an old table.
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
        for lists in &self.by_loop {
            let mut lists = lock(lists);
            lists.routes = TopList::default();
            if !is_on {
                lists.clients = TopList::default();
            }
        }
    }

    /// Counts a request.
    pub(crate) fn count(&self, route: Option<&Route>, client: PeerAddress, now: Instant) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let own = self.by_loop.get(loops::current_loop_index());
        let mut lists = lock(own.unwrap_or(&self.by_loop[0]));
        let client = AddressPrefix::from_address(client).to_bits();
        lists.clients.count(&client, now);
        if let Some(route) = route {
            lists.routes.count(&address_of(route), now);
        }
    }

    pub(crate) fn snapshot(&self, table: &RouteTable, now: Instant) -> TopSnapshot {
        let (mut requests, mut routes, mut clients) = (0, Vec::new(), Vec::new());
        for lists in &self.by_loop {
            let mut lists = lock(lists);
            requests += lists.clients.total(now);
            routes.push(lists.routes.entries(now).to_vec());
            clients.push(lists.clients.entries(now).to_vec());
        }
        let names = table.route_names();
        let routes = merge_top_lists(routes, MAX_SHOWN).into_iter();
        let clients = merge_top_lists(clients, MAX_SHOWN).into_iter();
        TopSnapshot {
            requests,
            routes: routes
                .filter_map(|entry| Some((names.get(&entry.key)?.clone(), entry.count)))
                .collect(),
            clients: clients
                .map(|entry| (AddressPrefix::from_bits(entry.key).to_string(), entry.count))
                .collect(),
        }
    }
}

/// What a route is found by again: no two routes of a table have the same.
pub(crate) fn address_of(route: &Route) -> usize {
    std::ptr::from_ref(route).addr()
}

fn lock(lists: &Mutex<LoopLists>) -> MutexGuard<'_, LoopLists> {
    lists.lock().unwrap_or_else(PoisonError::into_inner)
}
