//! What the metrics text says of pools for blocking work, of caches and of the routes that use these.
//!
//! Part of `metrics_text`, which calls it with these parts of a snapshot. What must stay true: a
//! cache that is out has all its samples, so that a series does not end when its disk does.

use std::fmt::{self, Write};

use super::{EscapedLabel, MetricRow, as_sample};
use crate::{CacheStatus, CachedRouteStatus, PoolStatus};

impl super::MetricsText {
    /// Each pool.
    pub(super) fn push_pools(&mut self, pools: &[PoolStatus]) -> fmt::Result {
        let gauges = POOL_GAUGES.map(|row| ("gauge", row));
        let counters = POOL_COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.push_header(name, kind, help)?;
            for pool in pools {
                let (label, value) = (EscapedLabel(&pool.name), value(pool));
                writeln!(self.text, "penstock_{name}{{pool=\"{label}\"}} {value}")?;
            }
        }
        Ok(())
    }

    /// Each cache.
    pub(super) fn push_caches(&mut self, caches: &[CacheStatus]) -> fmt::Result {
        let gauges = CACHE_GAUGES.map(|row| ("gauge", row));
        let counters = CACHE_COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.push_header(name, kind, help)?;
            for cache in caches {
                let (label, value) = (EscapedLabel(&cache.name), value(cache));
                writeln!(self.text, "penstock_{name}{{cache=\"{label}\"}} {value}")?;
            }
        }
        let name = "cache_state";
        self.push_header(name, "gauge", "The cache's state, as a label; always 1.")?;
        for cache in caches {
            let (label, state) = (EscapedLabel(&cache.name), EscapedLabel(&cache.state));
            writeln!(
                self.text,
                "penstock_{name}{{cache=\"{label}\",state=\"{state}\"}} 1"
            )?;
        }
        Ok(())
    }
}

impl super::MetricsText {
    /// Each route with caches.
    pub(super) fn push_cached_routes(&mut self, routes: &[CachedRouteStatus]) -> fmt::Result {
        let name = "route_cache_requests_total";
        let help = "Requests of routes with caches, by what became of them.";
        self.push_header(name, "counter", help)?;
        for route in routes {
            let (label, counters) = (EscapedLabel(&route.name), &route.counters);
            for (result, count) in [
                ("hit", counters.hits),
                ("stale", counters.stale),
                ("validated", counters.validated),
                ("collapsed", counters.collapsed),
                ("miss", counters.misses),
                ("passed", counters.passed),
            ] {
                writeln!(
                    self.text,
                    "penstock_{name}{{route=\"{label}\",result=\"{result}\"}} {count}"
                )?;
            }
        }
        for (name, help, value) in ROUTE_COUNTERS {
            self.push_header(name, "counter", help)?;
            for route in routes {
                let (label, value) = (EscapedLabel(&route.name), value(route));
                writeln!(self.text, "penstock_{name}{{route=\"{label}\"}} {value}")?;
            }
        }
        Ok(())
    }
}

const ROUTE_COUNTERS: [MetricRow<CachedRouteStatus, u64>; 3] = [
    ("route_cache_failures_total", "Fetches that failed.", |r| {
        r.counters.failures
    }),
    (
        "route_cache_stored_total",
        "Responses that were stored.",
        |r| r.counters.stored,
    ),
    (
        "route_cache_body_bytes_total",
        "Bytes of bodies that came from a cache.",
        |r| r.counters.body_bytes,
    ),
];

const POOL_GAUGES: [MetricRow<PoolStatus, f64>; 6] = [
    ("pool_queued", "Jobs waiting for a thread.", |p| {
        as_sample(p.queued as u64)
    }),
    ("pool_queue_max", "The bound on waiting jobs.", |p| {
        as_sample(p.max_queue as u64)
    }),
    ("pool_active", "Threads at work.", |p| {
        as_sample(p.active as u64)
    }),
    ("pool_threads_max", "The bound on threads.", |p| {
        as_sample(p.threads as u64)
    }),
    (
        "pool_queue_seconds_max",
        "The longest that a job has waited since the start.",
        |p| p.queue_time_max.as_secs_f64(),
    ),
    (
        "pool_oldest_seconds",
        "How long the job that is at work for longest has been.",
        |p| p.oldest.as_secs_f64(),
    ),
];

const POOL_COUNTERS: [MetricRow<PoolStatus, f64>; 5] = [
    (
        "pool_refused_total",
        "Jobs refused: the queue was full.",
        |p| as_sample(p.refused),
    ),
    ("pool_taken_total", "Jobs that a thread has taken.", |p| {
        as_sample(p.queue_time.count)
    }),
    (
        "pool_queue_seconds_total",
        "Time that these have waited for it.",
        |p| p.queue_time.sum_seconds,
    ),
    ("pool_done_total", "Jobs that have ended.", |p| {
        as_sample(p.work_time.count)
    }),
    (
        "pool_work_seconds_total",
        "Time that these were at work.",
        |p| p.work_time.sum_seconds,
    ),
];

const CACHE_GAUGES: [MetricRow<CacheStatus, f64>; 7] = [
    ("cache_up", "1 while it is used, 0 while it is out.", |c| {
        as_sample(u64::from(c.state != "out"))
    }),
    ("cache_objects", "Objects stored.", |c| as_sample(c.objects)),
    ("cache_bytes", "Bytes stored.", |c| as_sample(c.bytes)),
    ("cache_bytes_max", "The bound on bytes stored.", |c| {
        as_sample(c.bytes_max)
    }),
    ("cache_memory_objects", "Objects in memory.", |c| {
        as_sample(c.memory_objects)
    }),
    ("cache_memory_bytes", "Bytes of objects in memory.", |c| {
        as_sample(c.memory_bytes)
    }),
    (
        "cache_memory_bytes_max",
        "The bound on bytes of objects in memory.",
        |c| as_sample(c.memory_bytes_max),
    ),
];

const CACHE_COUNTERS: [MetricRow<CacheStatus, f64>; 10] = [
    (
        "cache_hits_total",
        "Requests for which it had something, fresh or not.",
        |c| as_sample(c.counters.hits),
    ),
    (
        "cache_misses_total",
        "Requests for which it had nothing.",
        |c| as_sample(c.counters.misses),
    ),
    ("cache_stored_total", "Objects stored.", |c| {
        as_sample(c.counters.stored)
    }),
    (
        "cache_evicted_total",
        "Objects that had to go for others.",
        |c| as_sample(c.counters.evicted),
    ),
    ("cache_purged_total", "Objects taken out by purges.", |c| {
        as_sample(c.counters.purged)
    }),
    (
        "cache_errors_total",
        "Operations that failed, and objects found damaged.",
        |c| as_sample(c.counters.errors),
    ),
    ("cache_reads_total", "Reads from its disk.", |c| {
        as_sample(c.read_time.count)
    }),
    (
        "cache_read_seconds_total",
        "Time that these have taken.",
        |c| c.read_time.sum_seconds,
    ),
    ("cache_writes_total", "Writes to its disk.", |c| {
        as_sample(c.write_time.count)
    }),
    (
        "cache_write_seconds_total",
        "Time that these have taken.",
        |c| c.write_time.sum_seconds,
    ),
];
