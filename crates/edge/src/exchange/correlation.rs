//! The id of a request: made here, or kept where a trusted proxy has given one.

use penstock_config::RequestIdMode;
use penstock_exchange::correlation::{Correlation, REQUEST_ID_FIELD, RequestId};
use penstock_http::RequestHead;
use penstock_runtime::clock;

use super::ConnectionContext;
use crate::Settings;

impl ConnectionContext<'_> {
    /// What ties a request to its records elsewhere; nothing where that is off.
    pub(super) fn correlate(self, settings: &Settings, head: &RequestHead) -> Correlation {
        Correlation {
            request_id: (settings.request_id != RequestIdMode::Off)
                .then(|| self.request_id(settings, head)),
        }
    }

    fn request_id(self, settings: &Settings, head: &RequestHead) -> RequestId {
        let is_trusted = self.source.is_trusted_proxy(&settings.trusted_proxies);
        let given = head.field(REQUEST_ID_FIELD).filter(|_| is_trusted);
        given
            .and_then(RequestId::from_field)
            .unwrap_or_else(|| RequestId::generate(clock::wall_time()))
    }
}
