//! Instructions in the body of a response: `application/grip-instruct`, which is JSON.

use bytes::Bytes;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{StreamKeepAlive, Subscription};
use serde_json::Value;

use super::{
    GripInstructions, HoldInstruction, HoldMode, InstructionError, build_keep_alive, parse_filter,
};
use crate::json::{self, JsonShapeError, Object};
use crate::publish_format;

pub(super) fn parse_body(
    of_fields: GripInstructions,
    answered: Status,
    text: &[u8],
) -> Result<GripInstructions, InstructionError> {
    if answered != Status::OK {
        return Err(InstructionError::UnexpectedStatus(answered.code()));
    }
    let value: Value = serde_json::from_slice(text)
        .map_err(|error| InstructionError::InvalidJson(error.to_string()))?;
    let all = json::as_object(&value)?;
    let hold = match json::object(all, "hold")? {
        Some(object) => Some(parse_hold(object)?),
        None => of_fields.hold,
    };
    let response = json::object(all, "response")?;
    let response = response.map(|object| parse_response(object, of_fields.status));
    let within = |misfit: JsonShapeError| misfit.within_key("response");
    let (status, fields, body) = response.transpose().map_err(within)?.unwrap_or((
        of_fields.status,
        FieldBlock::new(),
        Bytes::new(),
    ));
    if hold
        .as_ref()
        .is_some_and(|hold| hold.subscriptions.is_empty())
    {
        return Err(InstructionError::NoChannel);
    }
    Ok(GripInstructions {
        hold,
        status,
        fields,
        body: Some(body),
        links: of_fields.links,
    })
}

fn parse_hold(object: &Object) -> Result<HoldInstruction, InstructionError> {
    let within = |misfit: JsonShapeError| InstructionError::from(misfit.within_key("hold"));
    let mode = match json::text(object, "mode").map_err(within)? {
        None | Some("response") => HoldMode::LongPoll,
        Some("stream") => HoldMode::Stream,
        Some(_) => {
            return Err(within(JsonShapeError::new(
                "mode",
                "`response` or `stream`",
            )));
        }
    };
    let mut hold = HoldInstruction::new(mode);
    let channels = json::list(object, "channels").map_err(within)?;
    for (index, channel) in channels.iter().enumerate() {
        let within = |misfit: JsonShapeError| within(misfit.at_index(index).within_key("channels"));
        hold.subscriptions
            .push(parse_subscription(channel, &within)?);
    }
    if hold.subscriptions.is_empty() {
        return Err(InstructionError::NoChannel);
    }
    if let Some(seconds) = json::number(object, "timeout").map_err(within)? {
        hold.set_timeout(seconds);
    }
    if let Some(object) = json::object(object, "keep-alive").map_err(within)? {
        let beat = parse_keep_alive(object);
        hold.keep_alive = beat.map_err(|misfit| within(misfit.within_key("keep-alive")))?;
    }
    hold.meta = json::pairs(object, "meta").map_err(within)?;
    Ok(hold)
}

fn parse_subscription(
    value: &Value,
    within: &dyn Fn(JsonShapeError) -> InstructionError,
) -> Result<Subscription, InstructionError> {
    let object = json::as_object(value).map_err(within)?;
    let name = json::text(object, "name").map_err(within)?;
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| within(JsonShapeError::new("name", "a channel's name")))?;
    let filters = json::texts(object, "filters").map_err(within)?;
    let filters = filters.iter().map(|asked| parse_filter(name, asked));
    Ok(Subscription {
        channel: name.into(),
        prev_id: json::text(object, "prev-id")
            .map_err(within)?
            .map(Into::into),
        filters: filters.collect::<Result<_, _>>()?,
    })
}

fn parse_keep_alive(object: &Object) -> Result<Option<StreamKeepAlive>, JsonShapeError> {
    let bytes = json::bytes(object, "content")?.unwrap_or_default();
    let seconds = json::number(object, "timeout")?;
    let regardless = match json::text(object, "mode")? {
        None | Some("idle") => false,
        Some("interval") => true,
        Some(_) => return Err(JsonShapeError::new("mode", "`idle` or `interval`")),
    };
    Ok(build_keep_alive(bytes, seconds, regardless))
}

fn parse_response(
    object: &Object,
    otherwise: Status,
) -> Result<(Status, FieldBlock, Bytes), JsonShapeError> {
    let status = publish_format::parse_status(object)?.unwrap_or(otherwise);
    // Penstock has its own; this only has to be a text.
    json::text(object, "reason")?;
    let fields = publish_format::parse_headers(object)?;
    let body = json::bytes(object, "body")?.unwrap_or_default();
    Ok((status, fields, body))
}
