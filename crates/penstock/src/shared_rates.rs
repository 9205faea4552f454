//! Carries what the rules ask of shared rates to Redis and back (`server.redis`).
//!
//! One task on the control loop, from start to end: `server` starts it. While Redis is away each
//! server limits alone, which the log and the status say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_cluster::{RateQuery, RateStore, SharedRatesSnapshot};
use penstock_config::Config;
use penstock_rules::{CellGrant, CellRequest, SharedRates};
use penstock_runtime::{clock, loops};

use crate::hub_service::read_authorities;

/// Waits between two connections: doubled with each failure.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// An idle connection is tried so often, so that a Redis that is gone is known before a request waits
/// for it.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Starts the task if there is a Redis, on the current loop and within a tokio runtime. *Blocking*:
/// reads a file.
///
/// # Errors
/// When the address or the authorities are not understood.
pub(crate) fn start(config: &Config, rates: &Arc<SharedRates>) -> Result<(), String> {
    let Some(address) = &config.server.redis else {
        return Ok(());
    };
    let authorities = config.server.redis_ca.as_deref().map(read_authorities);
    let store = RateStore::new(address.expose(), authorities.transpose()?);
    let store = store.map_err(|error| error.to_string())?;
    loops::spawn_here(carry_rates(store, Arc::clone(rates)));
    Ok(())
}

/// The shared limits for the status; `None` without Redis.
pub(crate) fn snapshot(config: &Config, rates: &SharedRates) -> Option<SharedRatesSnapshot> {
    config.server.redis.as_ref()?;
    Some(SharedRatesSnapshot {
        connected: rates.is_connected(),
        decided_alone: rates.decided_alone(),
    })
}

async fn carry_rates(mut store: RateStore, rates: Arc<SharedRates>) {
    let address = store.address();
    let (mut interval, mut is_outage_logged) = (MIN_RETRY_INTERVAL, false);
    loop {
        let mut connected_at = None;
        let error = match store.connect().await {
            Err(error) => error,
            Ok(()) => {
                if std::mem::take(&mut is_outage_logged) {
                    log::info!("rate_limit: redis at {address} is back: limits are shared again");
                }
                rates.connect();
                connected_at = Some(clock::now());
                carry_batches(&mut store, &rates).await
            }
        };
        rates.disconnect();
        if !std::mem::replace(&mut is_outage_logged, true) {
            log::warn!(
                "rate_limit: redis at {address}: {error}: each server limits alone until it is back"
            );
        }
        interval = match connected_at.is_some_and(has_been_stable) {
            true => MIN_RETRY_INTERVAL,
            false => (interval * 2).min(MAX_RETRY_INTERVAL),
        };
        clock::sleep(interval).await;
    }
}

/// Whether a connection has worked for some time.
fn has_been_stable(connected_at: Instant) -> bool {
    clock::now().saturating_duration_since(connected_at) >= MAX_RETRY_INTERVAL
}

/// Carries batches until one fails; returns why.
async fn carry_batches(store: &mut RateStore, rates: &SharedRates) -> String {
    loop {
        let batch = clock::timeout(PING_INTERVAL, rates.next_batch()).await;
        let batch = batch.unwrap_or_default();
        let queries: Vec<RateQuery> = batch.iter().map(query_of).collect();
        match store.grant(&queries).await {
            Ok(grants) => {
                let grants: Vec<CellGrant> = grants
                    .into_iter()
                    .map(|(cells, wait)| CellGrant { cells, wait })
                    .collect();
                rates.complete(&batch, &grants, clock::now());
            }
            Err(error) => return error,
        }
    }
}

fn query_of(request: &CellRequest) -> RateQuery {
    RateQuery {
        key: request.key,
        interval_nanos: request.interval_nanos,
        burst_nanos: request.burst_nanos,
        cells: request.cells,
    }
}
