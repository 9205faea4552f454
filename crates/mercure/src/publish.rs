//! Publishing: a POST of a form becomes an update.
//!
//! # Invariants
//! - A publisher without rights is refused before its body is read.
//! - A body is read no further than a form of the allowed size can be.
//! - An update is published to all its topics or to none.

use std::sync::Arc;

use penstock_exchange::{Fault, FaultKind, Request, Response};
use penstock_http::{RequestHead, Status, is_media_type};

use crate::access::AccessDenied;
use crate::handler::MercureShared;
use crate::query::MercureQuery;
use crate::responses;
use crate::selector::SelectorSet;
use crate::update::{Update, UpdateDraft, UpdateDraftError, max_form_bytes};

const FORM_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";

/// What `head` allows its sender: selectors of topics, or the answer that refuses it.
pub(super) fn authorize(
    shared: &MercureShared,
    head: &RequestHead,
) -> Result<SelectorSet, Box<Response>> {
    let query = head.target_path_query().split_once('?');
    let query = MercureQuery::parse(query.map_or("", |(_, query)| query));
    let in_query = query.authorization.as_deref();
    let grants = shared.access.authorize_publisher(head, in_query);
    let grants = grants.map_err(|denied| Box::new(responses::denied_response(&denied, head)))?;
    if !is_form(head) {
        let text = "An application/x-www-form-urlencoded body is expected";
        let refused = responses::text_line_response(Status::UNSUPPORTED_MEDIA_TYPE, text);
        return Err(Box::new(refused));
    }
    Ok(grants)
}

/// Handles the request of a publisher that may publish to topics that `grants` select.
pub(super) async fn handle_publish(
    shared: Arc<MercureShared>,
    grants: SelectorSet,
    request: Request,
) -> Result<Response, Fault> {
    let message_bytes = shared.broker.hub().settings().max_message_size;
    let Some(form) = request
        .body
        .read_limited(max_form_bytes(message_bytes))
        .await?
    else {
        return Ok(draft_error_response(&UpdateDraftError::TooLarge(
            message_bytes,
        )));
    };
    let draft = match UpdateDraft::parse(&form) {
        Ok(draft) => draft,
        Err(error) => return Ok(draft_error_response(&error)),
    };
    if !is_publish_allowed(&grants, &draft) {
        return Ok(responses::denied_response(
            &AccessDenied::NotAllowed,
            &request.head,
        ));
    }
    let update = match Update::new(draft, message_bytes) {
        Ok(update) => update,
        Err(error) => return Ok(draft_error_response(&error)),
    };
    match shared.broker.publish(update) {
        Ok(id) => Ok(responses::plain_text_response(
            Status::OK,
            id.as_bytes().to_vec(),
        )),
        Err(full) => Err(Fault::new(
            FaultKind::Overloaded,
            format!("mercure: {full}"),
        )),
    }
}

fn draft_error_response(error: &UpdateDraftError) -> Response {
    let status = match error {
        UpdateDraftError::TooLarge(_) => Status::CONTENT_TOO_LARGE,
        _ => Status::BAD_REQUEST,
    };
    responses::text_line_response(status, error)
}

/// Without selectors a token allows public updates; else all topics must be selected.
fn is_publish_allowed(grants: &SelectorSet, draft: &UpdateDraft) -> bool {
    match grants.is_empty() {
        true => !draft.is_private,
        false => grants.matches_all(&draft.topics),
    }
}

fn is_form(head: &RequestHead) -> bool {
    let media_type = head.field("content-type").unwrap_or_default();
    is_media_type(media_type, FORM_MEDIA_TYPE)
}
