//! The metrics of each part of a snapshot, for `metrics_text`.

use std::collections::BTreeMap;

use penstock_exchange::metric_table;
use penstock_exchange::metrics::{EdgeMetrics, LocalCounter, MetricValue};

use crate::{
    AppStatus, CacheStatus, CachedRouteStatus, ClusterStatus, HubStatus, LimitStatus,
    MachineStatus, PoolStatus, ServerState, ServerStatus, Snapshot, UpstreamStatus,
};

fn copied(counts: &BTreeMap<&'static str, u64>) -> impl Iterator<Item = (&'static str, u64)> {
    counts.iter().map(|(reason, count)| (*reason, *count))
}

metric_table! {
    pub(super) static SERVER: |now: Snapshot| {
        gauge build_info = MetricValue::Label("version", now.version),
            "Build and version of the program; always 1.";
        gauge uptime_seconds = now.uptime, "Time since the server was started.";
        gauge draining = now.state == ServerState::Draining, "1 during a graceful shutdown.";
        gauge event_loops = now.event_loops, "Number of event loops.";
        gauge config_generation = now.config_generation, "Generation of the configuration in use.";
        counter config_reloads_total = now.config_reloads, "Successful configuration reloads.";
        counter log_lines_dropped_total = now.log_lines_dropped,
            "Log lines dropped because the log output was too slow.";
        counter event_loop_stalls_total = now.event_loop_stalls,
            "Times that an event loop was stalled for 5 s or longer.";
        gauge connections_limit = now.connections.max, "Limit on open client connections.";
        gauge resident_memory_bytes = now.resident_bytes,
            "Resident memory of the server, without its workers.";
    }
}

metric_table! {
    pub(super) static MACHINE: |machine: MachineStatus| {
        gauge load_average = machine.load_average, "Load average of the last minute.";
        gauge socket_estimated_bytes = machine.estimated_socket_bytes,
            "Kernel memory of open connections without their data (estimate).";
        gauge tcp_buffer_bytes = machine.tcp_buffer_bytes,
            "Memory of TCP socket buffers, of all processes of the machine.";
    }
}

metric_table! {
    pub(super) static LIMITS: |limit: LimitStatus| {
        gauge limit_used = limit.used, "Current use of a limit, by its configuration key.";
        gauge limit_value = limit.used.map(|_| limit.max),
            "Configured limit, by its configuration key.";
        counter limit_reached_total = limit.reached,
            "Times that a request was refused or delayed by a limit.";
    }
}

metric_table! {
    pub(super) static EDGE: |edge: EdgeMetrics| {
        gauge connections_open = edge.open_connections.value(), "Open client connections.";
        gauge requests_active = edge.active_requests.value(), "Requests in progress.";
        counter connections_accepted_total = edge.accepted_connections.value(),
            "Client connections accepted.";
        counter requests_malformed_total = edge.malformed_requests.value(),
            "Requests refused as malformed.";
        counter client_disconnects_total = edge.client_disconnects.value(),
            "Clients that disconnected before their response was complete.";
        counter slow_clients_total = edge.slow_clients.value(),
            "Connections closed because the client was too slow.";
        counter connections_evicted_total = edge.evicted_connections.value(),
            "Idle connections closed to free capacity.";
        counter connections_refused_total = edge.refused_connections.value(),
            "Connections closed because their client had too many open.";
        counter received_bytes_total = edge.bytes_in.value(), "Body bytes received.";
        counter sent_bytes_total = edge.bytes_out.value(),
            "Bytes sent, response headers included.";
        counter responses_total = MetricValue::by_label("class",
            ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter()
                .zip(edge.responses.iter().map(LocalCounter::value))),
            "Responses by status class.";
        histogram request_duration_seconds = &edge.total_time,
            "Time from the complete request header to the last byte handed to the kernel.";
    }
}

metric_table! {
    pub(super) static HUB: |hub: HubStatus| {
        gauge hub_streams = hub.streams, "Open streams.";
        gauge hub_long_polls = hub.long_polls, "Long polls waiting.";
        gauge hub_connections = hub.connections.used,
            "Connections held by the hub: streams, long polls, WebSockets and those being accepted.";
        gauge hub_connections_limit = hub.connections.max,
            "Limit on connections held by the hub.";
        gauge hub_channels = hub.channels.used, "Channels with subscribers or history.";
        gauge hub_channels_limit = hub.channels.max, "Limit on channels.";
        gauge hub_stream_memory_bytes = hub.stream_bytes,
            "Memory of held streams, without the kernel's.";
        gauge hub_backlog_bytes = hub.backlog_bytes.used, "Bytes queued for slow subscribers.";
        gauge hub_backlog_limit_bytes = hub.backlog_bytes.max,
            "Limit on bytes queued for slow subscribers.";
        gauge hub_history_bytes = hub.history_bytes.used, "Bytes of all histories.";
        gauge hub_history_limit_bytes = hub.history_bytes.max, "Limit on bytes of all histories.";
        counter hub_streams_opened_total = hub.counters.opened, "Streams opened.";
        counter hub_streams_closed_total = hub.counters.closed, "Streams closed.";
        counter hub_streams_closed_slow_total = hub.counters.closed_slow,
            "Streams closed because their client was too slow.";
        counter hub_messages_published_total = hub.counters.published, "Messages published.";
        counter hub_messages_delivered_total = hub.counters.delivered,
            "Messages written, counted once for each subscriber.";
        counter hub_messages_dropped_total = hub.counters.dropped,
            "Messages dropped because a subscriber was too slow.";
        counter hub_heartbeats_total = hub.counters.heartbeats, "Heartbeats written.";
    }
}

metric_table! {
    pub(super) static CLUSTER: |cluster: ClusterStatus| {
        gauge hub_redis_up = cluster.connected, "1 while connected to Redis.";
        gauge hub_redis_queued_messages = cluster.queued, "Messages queued for Redis.";
        gauge hub_redis_channels = cluster.channels,
            "Channels that this server subscribes to in Redis.";
        gauge hub_cluster_servers = cluster.servers,
            "Servers in the cluster; 0 while Redis does not answer.";
        counter hub_redis_messages_lost_total = cluster.lost,
            "Messages dropped before they reached Redis.";
    }
}

/// Counted even at zero, so that a series does not end when its last worker leaves the state.
const WORKER_STATES: [&str; 4] = ["booting", "ready", "retiring", "stopping"];

metric_table! {
    pub(super) static APPS: |app: AppStatus| {
        counter app_requests_total = app.counters.requests, "Requests that reached the queue.";
        counter app_queue_full_total = app.counters.queue_full,
            "Requests refused because the queue was full.";
        counter app_queue_timeouts_total = app.counters.queue_timeouts,
            "Requests refused after waiting too long for a slot.";
        counter app_queue_abandoned_total = app.counters.queue_abandoned,
            "Clients that disconnected while their request was queued.";
        counter app_requests_failed_total = app.counters.failed_requests,
            "Requests on which the application failed.";
        counter app_requests_worker_died_total = app.counters.worker_deaths,
            "Requests lost because their worker exited.";
        counter app_requests_timed_out_total = app.counters.timed_out_requests,
            "Requests aborted after response_timeout.";
        counter app_workers_boot_failed_total = app.counters.failed_boots,
            "Workers that did not become ready.";
        counter app_scale_ups_total = app.counters.scale_ups,
            "Times that the number of processes was raised by load.";
        counter app_scale_downs_total = app.counters.scale_downs,
            "Times that the number of processes was lowered by load.";
        counter app_requests_io_bound_total = app.counters.io_bound_requests,
            "Requests marked as I/O bound.";
        counter app_requests_io_bound_without_spare_total = app.counters.io_bound_without_spare_slot,
            "I/O-bound requests for which no spare slot was free.";
        counter app_gc_runs_total = app.counters.gc_runs, "Garbage collections between requests.";
        counter app_refused_calls_total = app.counters.refused_calls,
            "System calls that the sandbox refused.";
        counter app_workers_started_total = app.counters.started_workers, "Workers started.";
        counter app_workers_crashed_total = app.counters.crashed_workers,
            "Workers that exited unexpectedly.";
        counter app_tasks_refused_total = app.counters.tasks_refused,
            "Processes and threads that could not be started because of max_tasks.";
        counter app_out_of_memory_kills_total = app.counters.out_of_memory_kills,
            "Processes that the kernel killed for lack of memory.";
        counter app_throttled_seconds_total = app.counters.throttled,
            "Time that the processes were throttled because of max_cpu.";
        counter app_workers_recycled_total = MetricValue::by_label("reason", copied(&app.counters.recycled_workers)),
            "Workers replaced, by reason.";
        counter app_workers_killed_total = MetricValue::by_label("reason", copied(&app.counters.killed_workers)),
            "Workers killed, by reason.";
        histogram app_queue_seconds = &app.queue_time, "Time that requests waited for a slot.";
        histogram app_header_seconds = &app.header_time,
            "Time from a request reaching a worker to its response header.";
        gauge app_queue_length = app.queue.length, "Requests waiting for a slot.";
        gauge app_queue_limit = app.queue.max, "Limit on waiting requests.";
        gauge app_queue_oldest_seconds = app.queue.oldest_wait,
            "Time that the oldest request has waited.";
        gauge app_slots = app.queue.slots, "Requests that the workers can process at once.";
        gauge app_requests_active = app.queue.active, "Requests in progress.";
        gauge app_processes_min = app.processes.min, "Lower bound on processes.";
        gauge app_processes_max = app.processes.max, "Upper bound on processes.";
        gauge app_processes_target = app.processes.target,
            "Target number of processes at the current load.";
        gauge app_threads = app.threads, "Threads of each process that accept requests.";
        gauge app_threads_min = app.min_threads, "Lower bound on threads of each process.";
        gauge app_threads_max = app.max_threads, "Upper bound on threads of each process.";
        gauge app_restarting = app.is_restarting, "1 during a rolling restart.";
        gauge app_proportional_memory_bytes =
            app.workers.iter().filter_map(|it| it.proportional_bytes).sum::<u64>(),
            "Proportional set size (PSS) of all workers, as last measured.";
        gauge app_templates = app.templates.len(),
            "Template processes from which workers are forked.";
        gauge app_generation = app.generation, "Generation of the code in use.";
        gauge app_resident_memory_bytes =
            app.workers.iter().filter_map(|it| it.resident_bytes).sum::<u64>(),
            "Resident memory of all workers.";
        gauge app_tasks = app.bounds.tasks, "Processes and threads of the application.";
        gauge app_tasks_limit = app.bounds.max_tasks,
            "Limit on processes and threads (max_tasks).";
        gauge app_total_memory_bytes = app.bounds.memory_bytes,
            "Memory of all processes of the application together.";
        gauge app_total_memory_limit_bytes = app.bounds.max_memory_bytes,
            "Limit on the memory of all processes together (max_total_memory).";
        gauge app_cpu_limit = app.bounds.max_cpu,
            "Limit on the processors of all processes together (max_cpu).";
        gauge app_state = MetricValue::Label("state", &app.state),
            "The application's state, as a label; always 1.";
        gauge app_workers = MetricValue::by_label("state", WORKER_STATES.map(|state| {
            (state, app.workers.iter().filter(|it| it.state == state).count() as u64)
        })), "Workers by state.";
    }
}

metric_table! {
    pub(super) static UPSTREAMS: |upstream: UpstreamStatus| {
        gauge upstream_up = upstream.up, "1 while any server accepts requests.";
        gauge upstream_queue_length = upstream.queue.length, "Requests waiting for a server.";
        gauge upstream_queue_limit = upstream.queue.max, "Limit on waiting requests.";
        gauge upstream_queue_oldest_seconds = upstream.queue.oldest_wait,
            "Time that the oldest request has waited.";
        counter upstream_requests_total = upstream.counters.requests, "Requests to the upstream.";
        counter upstream_queue_full_total = upstream.counters.queue_full,
            "Requests refused because the queue was full.";
        counter upstream_queue_timeouts_total = upstream.counters.queue_timeouts,
            "Requests refused after waiting too long for a server.";
        counter upstream_queue_abandoned_total = upstream.counters.queue_abandoned,
            "Clients that disconnected while their request was queued.";
        counter upstream_unavailable_total = upstream.counters.unavailable,
            "Requests refused because no server was up.";
        counter upstream_retries_total = upstream.counters.retries, "Retries.";
        counter upstream_retries_over_budget_total = upstream.counters.retries_over_budget,
            "Retries not made because the retry budget was used up.";
        histogram upstream_queue_seconds = &upstream.queue_time,
            "Time that requests waited for a server.";
        histogram upstream_connect_seconds = &upstream.connect_time,
            "Time to connect to a server.";
        histogram upstream_header_seconds = &upstream.header_time,
            "Time from the end of the request to the response header.";
    }
}

metric_table! {
    pub(super) static SERVERS: |server: ServerStatus| {
        gauge upstream_server_requests_active = server.active, "Requests in progress.";
        gauge upstream_server_requests_active_limit = server.max_active.map(u64::from),
            "Limit on requests in progress, where there is one.";
        gauge upstream_server_weight = server.weight, "Weight of the server.";
        gauge upstream_server_backup = server.backup,
            "1 if the server only gets requests when no other server is available.";
        gauge upstream_server_connections_open = server.connections_open,
            "Open connections to the server.";
        gauge upstream_server_connections_idle = server.connections_idle,
            "Idle connections to the server.";
        counter upstream_server_requests_total = server.requests, "Requests sent to the server.";
        counter upstream_server_failures_total = server.failures,
            "Requests that failed on the server.";
        counter upstream_server_timeouts_total = server.timeouts,
            "Failed requests that timed out.";
        counter upstream_server_connects_total = server.connects,
            "Connections opened for requests.";
        counter upstream_server_connection_reuses_total = server.connection_reuses,
            "Requests sent on an idle connection.";
        gauge upstream_server_state = MetricValue::Label("state", &server.state),
            "The server's state, as a label; always 1.";
    }
}

metric_table! {
    pub(super) static CACHES: |cache: CacheStatus| {
        gauge cache_up = cache.state != "out_of_service",
            "1 while the cache is in use, 0 while it is out of service.";
        gauge cache_objects = cache.objects, "Objects stored.";
        gauge cache_bytes = cache.bytes, "Bytes stored.";
        gauge cache_limit_bytes = cache.max_bytes, "Limit on stored bytes.";
        gauge cache_memory_objects = cache.memory_objects, "Objects in memory.";
        gauge cache_memory_bytes = cache.memory_bytes, "Bytes of objects in memory.";
        gauge cache_memory_limit_bytes = cache.max_memory_bytes,
            "Limit on bytes of objects in memory.";
        counter cache_hits_total = cache.counters.hits,
            "Look-ups that found an object, fresh or stale.";
        counter cache_misses_total = cache.counters.misses, "Look-ups that found none.";
        counter cache_stores_total = cache.counters.stores, "Objects stored.";
        counter cache_evictions_total = cache.counters.evictions, "Objects evicted.";
        counter cache_purged_objects_total = cache.counters.purged_objects,
            "Objects removed by purges.";
        counter cache_errors_total = cache.counters.errors,
            "Failed operations and damaged objects.";
        counter cache_reads_total = cache.read_time.count, "Reads from disk.";
        counter cache_read_seconds_total = cache.read_time.sum_seconds, "Total time of reads.";
        counter cache_writes_total = cache.write_time.count, "Writes to disk.";
        counter cache_write_seconds_total = cache.write_time.sum_seconds, "Total time of writes.";
        gauge cache_state = MetricValue::Label("state", &cache.state),
            "The cache's state, as a label; always 1.";
    }
}

metric_table! {
    pub(super) static CACHED_ROUTES: |route: CachedRouteStatus| {
        counter route_cache_requests_total = MetricValue::by_label("result", [
            ("hit", route.counters.hits),
            ("stale", route.counters.stale),
            ("revalidated", route.counters.revalidated),
            ("collapsed", route.counters.collapsed),
            ("miss", route.counters.misses),
            ("bypassed", route.counters.bypassed),
        ]), "Requests of routes with caches, by result.";
        counter route_cache_fetch_failures_total = route.counters.fetch_failures,
            "Fetches from the origin that failed.";
        counter route_cache_stores_total = route.counters.stores, "Responses stored.";
        counter route_cache_served_bytes_total = route.counters.served_bytes,
            "Body bytes served from a cache.";
    }
}

metric_table! {
    pub(super) static POOLS: |pool: PoolStatus| {
        gauge pool_queue_length = pool.queued, "Jobs waiting for a thread.";
        gauge pool_queue_limit = pool.max_queued, "Limit on waiting jobs.";
        gauge pool_threads_active = pool.active_threads, "Threads running a job.";
        gauge pool_threads_limit = pool.max_threads, "Limit on threads.";
        gauge pool_queue_max_seconds = pool.max_queue_time,
            "Longest time that a job has waited since the start.";
        gauge pool_oldest_running_seconds = pool.oldest_running,
            "Run time of the job that has been running longest.";
        counter pool_jobs_refused_total = pool.refused, "Jobs refused because the queue was full.";
        counter pool_jobs_started_total = pool.queue_time.count, "Jobs started.";
        counter pool_queue_seconds_total = pool.queue_time.sum_seconds,
            "Total time that started jobs waited.";
        counter pool_jobs_finished_total = pool.run_time.count, "Jobs finished.";
        counter pool_run_seconds_total = pool.run_time.sum_seconds,
            "Total run time of finished jobs.";
    }
}
