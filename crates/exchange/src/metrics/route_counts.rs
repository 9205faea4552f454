//! Responses by route: their status classes and how long they took.
//!
//! `penstock`'s wiring gets a [`RouteCounts`] for each route where `server.route_metrics` is on and
//! gives it to `edge`, which counts. `status` shows all of them.
//!
//! # Invariants
//! - The labels are names of the configuration, never anything of a client.
//! - Routes of one site with one path count together, so no two samples have the same labels.
//! - A route that a reload keeps goes on counting.
//! - An event loop counts without a locked instruction.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde::Serialize;

use super::{Histogram, HistogramValues, LocalCounter, MetricValue, STATUS_CLASSES};

/// The counts of one route.
#[derive(Debug)]
pub struct RouteCounts {
    site: Box<str>,
    route: Box<str>,
    /// One set for each event loop, changed by that loop only.
    loops: Box<[LoopCounts]>,
}

#[derive(Debug, Default)]
struct LoopCounts {
    responses: [LocalCounter; 5],
    duration: Histogram,
}

impl RouteCounts {
    fn new(site: &str, route: &str, loops: usize) -> Self {
        Self {
            site: site.into(),
            route: route.into(),
            loops: (0..loops.max(1)).map(|_| LoopCounts::default()).collect(),
        }
    }

    /// Counts a response on the event loop of this index.
    pub fn count_response(&self, loop_index: usize, status: u16, duration: Duration) {
        let Some(counts) = self.loops.get(loop_index).or_else(|| self.loops.first()) else {
            return;
        };
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        counts.responses[class].increment();
        counts.duration.record_local(duration);
    }

    /// Names the trace of a response that [`RouteCounts::count_response`] has counted.
    pub fn add_exemplar(&self, loop_index: usize, duration: Duration, trace_id: [u8; 16]) {
        if let Some(counts) = self.loops.get(loop_index).or_else(|| self.loops.first()) {
            counts.duration.add_exemplar(duration, trace_id);
        }
    }

    fn snapshot(&self) -> RouteCountsSnapshot {
        let duration = Histogram::default();
        let mut responses = [0; 5];
        for counts in &self.loops {
            duration.merge(&counts.duration);
            for (sum, one) in responses.iter_mut().zip(&counts.responses) {
                *sum += one.value();
            }
        }
        RouteCountsSnapshot {
            site: self.site.clone().into(),
            route: self.route.clone().into(),
            responses,
            duration: duration.values(),
        }
    }
}

/// The counts of all routes of a server, for its whole life.
#[derive(Debug, Default)]
pub struct RouteCountTable(Mutex<Vec<Weak<RouteCounts>>>);

impl RouteCountTable {
    /// The counts of a route: the same ones as long as a configuration has them.
    #[must_use]
    pub fn counts(&self, site: &str, route: &str, loops: usize) -> Arc<RouteCounts> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|counts| counts.strong_count() > 0);
        let mut known = table.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.find(|it| *it.site == *site && *it.route == *route) {
            return known;
        }
        let counts = Arc::new(RouteCounts::new(site, route, loops));
        table.push(Arc::downgrade(&counts));
        counts
    }

    /// All counts now, in the order in which their routes came.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RouteCountsSnapshot> {
        let table: Vec<_> = {
            let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            table.iter().filter_map(Weak::upgrade).collect()
        };
        table.iter().map(|counts| counts.snapshot()).collect()
    }
}

/// The counts of a route at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RouteCountsSnapshot {
    /// The first host of its site, or `*`.
    pub site: String,
    /// The pattern of its path.
    pub route: String,
    /// Responses by status class: 1xx to 5xx.
    pub responses: [u64; 5],
    /// Time from the complete request header to the last byte handed to the kernel.
    pub duration: HistogramValues,
}

crate::metric_table! {
    /// Metrics of each route.
    pub static ROUTE_METRICS: |route: RouteCountsSnapshot| {
        counter route_responses_total = MetricValue::by_label("class",
            STATUS_CLASSES.into_iter().zip(route.responses)),
            "Responses of a route by status class.";
        histogram route_request_duration_seconds = &route.duration,
            "Time of a route's requests from the complete header to the last byte of the response.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loops_of_a_route_add_up_and_go_on_after_a_reload() {
        let table = RouteCountTable::default();
        let route = table.counts("a.test", "/x/*", 2);
        let again = table.counts("a.test", "/x/*", 2);
        assert!(Arc::ptr_eq(&route, &again));
        let other = table.counts("*", "/x/*", 2);
        let long = Duration::from_millis(30);
        for (at, status) in [(0, 200), (1, 204), (1, 503), (7, 404)] {
            route.count_response(at, status, long);
        }
        route.add_exemplar(1, long, [7; 16]);
        drop(again);
        let all = table.snapshot();
        assert_eq!(all.len(), 2);
        assert_eq!((&*all[0].site, &*all[0].route), ("a.test", "/x/*"));
        assert_eq!(all[0].responses, [0, 2, 0, 1, 1]);
        assert_eq!(all[0].duration.count(), 4);
        assert_eq!(all[0].duration.exemplars[0].trace_id, [7; 16]);
        assert_eq!(all[1].responses, [0; 5]);
        drop((route, other));
        assert_eq!(table.snapshot(), []);
    }
}
