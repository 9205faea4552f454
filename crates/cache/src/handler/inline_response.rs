//! The fastest path: lends a fresh response in memory to `edge` before a request is built. Only for
//! the plainest requests, and only for what [`SharedCache::lookup`] would find fresh.
//!
//! # Invariants
//!
//! - The response is byte for byte what `handler` would send.
//! - The buffers belong to the event loop and are reused.

use penstock_exchange::field_policy::{FieldClass, classify_field, is_forwarding_field};
use penstock_exchange::{InlineBody, InlineResponse, Mount, RequestView};
use penstock_http::caching::{RequestDirectives, encode_cache_status};
use penstock_http::{BodyFraming, FieldBlock, Method, RequestHead};
use penstock_runtime::clock;

use super::{LookupResult, SharedCache, hit_status};
use crate::route_rules::{KeySource, LookupOptions, is_override_field};
use crate::serve::{CACHE_STATUS_NAME, HANDLER_NAME};
use crate::store::{HitBody, MemoryBody, ObjectKey};

/// Bodies in a buffer up to this size are copied behind their head, which is cheaper than a second
/// look-up. Larger ones exist where an arena had no space for them.
const MAX_COPIED_BODY: usize = 16 * 1024;

/// Buffers of one event loop.
#[derive(Debug, Default)]
pub(super) struct LoopBuffers {
    pub(super) key: Vec<u8>,
    fields: FieldBlock,
    status: Vec<u8>,
}

/// Lends the response to `take` if it is fresh and in memory.
pub(super) fn try_inline(
    shared: &SharedCache,
    asked: &RequestView<'_>,
    take: &mut dyn FnMut(InlineResponse<'_>),
) {
    let head = asked.head;
    if !is_plain_request(head) || !shared.rules.allows_plain_request(head) {
        return;
    }
    shared.loop_buffers.with(|scratch| {
        let key_source = KeySource {
            head,
            scheme: asked.scheme,
            // A plain request has no forwarding field.
            is_from_trusted_proxy: false,
            forwarded: None,
            // Routes with a mount have filters and do not use this path.
            mount: &Mount::ROOT,
        };
        scratch.key.clear();
        shared.rules.write_key(&key_source, &mut scratch.key);
        let key = ObjectKey::new(&scratch.key);
        let Some(store) = shared.stores.store_for(&key) else {
            return;
        };
        let now = clock::wall_time_at(asked.arrived_at);
        let directives = LookupOptions {
            may_store: true,
            directives: RequestDirectives::default(),
        };
        let LookupResult::Usable(usable) = shared.lookup(store, &key, head, &directives, now)
        else {
            return;
        };
        let body = match &usable.hit.body {
            _ if usable.is_stale => return,
            HitBody::Memory(MemoryBody::Bytes(body)) if body.len() <= MAX_COPIED_BODY => {
                InlineBody::Bytes(body)
            }
            HitBody::Memory(MemoryBody::Arena(body)) => InlineBody::File(body.clone()),
            HitBody::Memory(_) | HitBody::Partial(_) | HitBody::Disk(_) => return,
        };
        let meta = &usable.hit.meta;
        let fields = &mut scratch.fields;
        fields.clear();
        fields.push_u64("Age", usable.age.as_secs());
        fields.append(&meta.fields);
        if shared.rules.config.cache_status {
            scratch.status.clear();
            encode_cache_status(
                &mut scratch.status,
                CACHE_STATUS_NAME,
                &hit_status(usable.ttl),
            );
            let pushed = fields.push("Cache-Status", &scratch.status);
            debug_assert!(pushed.is_ok(), "printable ASCII is a valid value");
        }
        store.count_lookup(true);
        shared.counters.hits.increment();
        shared.counters.served_bytes.add(body.length());
        take(InlineResponse {
            status: meta.status,
            fields,
            body,
            handler: HANDLER_NAME,
        });
    });
}

/// Whether the request wants the whole response and has no field for caches and none of a proxy.
/// [`RouteRules::classify_request`] would find no directives in it, apart from the route's own
/// bypass rules. One pass over the fields.
///
/// [`RouteRules::classify_request`]: crate::route_rules::RouteRules::classify_request
fn is_plain_request(head: &RequestHead) -> bool {
    matches!(head.method(), Method::Get | Method::Head)
        && !head.is_upgrade()
        && matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0))
        && head.target_path_query().starts_with('/')
        && head.fields().all(|(name, _)| is_plain_field(name))
}

fn is_plain_field(name: &str) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    match name.as_bytes().first().map_or(0, |byte| byte | 0x20) {
        b'c' => !is("cache-control") && (!is_forwarding_field(name) || is("client-ip")),
        b'i' => !name
            .get(..3)
            .is_some_and(|start| start.eq_ignore_ascii_case("if-")),
        b'p' => !is("pragma"),
        b'r' => !is("range"),
        b'f' => !is_forwarding_field(name),
        b'x' => {
            classify_field(name) == FieldClass::EndToEnd
                && !is_forwarding_field(name)
                && !is_override_field(name)
        }
        _ => true,
    }
}
