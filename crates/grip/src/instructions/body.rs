//! Instructions in the body of a response: `application/grip-instruct`, which is JSON.

use bytes::Bytes;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{StreamKeepAlive, Subscription};
use serde_json::Value;

use super::{
    GripInstructions, HoldInstruction, HoldMode, InstructionError, build_keep_alive, parse_filter,
};
use crate::json::{JsonNode, JsonObject, JsonShapeError};
use crate::publish_format;

impl GripInstructions {
    /// Applies a body of instructions over those of the fields.
    pub(crate) fn apply_instruction_body(
        self,
        status: Status,
        text: &[u8],
    ) -> Result<Self, InstructionError> {
        if status != Status::OK {
            return Err(InstructionError::UnexpectedStatus(status.code()));
        }
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| InstructionError::InvalidJson(error.to_string()))?;
        let all = JsonNode::new(&value).as_object()?;
        let hold = match all.get_object("hold")? {
            Some(object) => Some(parse_hold(&object)?),
            None => self.hold,
        };
        let (status, fields, body) = match all.get_object("response")? {
            Some(object) => parse_response(&object, self.status)?,
            None => (self.status, FieldBlock::new(), Bytes::new()),
        };
        if hold
            .as_ref()
            .is_some_and(|hold| hold.subscriptions.is_empty())
        {
            return Err(InstructionError::NoChannel);
        }
        Ok(Self {
            hold,
            status,
            fields,
            body: Some(body),
            links: self.links,
        })
    }
}

fn parse_hold(object: &JsonObject<'_>) -> Result<HoldInstruction, InstructionError> {
    let mut hold = HoldInstruction::new(match object.get_text("mode")? {
        None | Some("response") => HoldMode::LongPoll,
        Some("stream") => HoldMode::Stream,
        Some(_) => {
            return Err(object
                .shape_error_at("mode", "`response` or `stream`")
                .into());
        }
    });
    if let Some(channels) = object.get("channels") {
        hold.subscriptions = channels.read_items(|_, channel| parse_subscription(channel))?;
    }
    if let Some(seconds) = object.get_number("timeout")? {
        hold.set_timeout(seconds);
    }
    if let Some(object) = object.get_object("keep-alive")? {
        hold.keep_alive = parse_keep_alive(&object)?;
    }
    hold.subscriber_meta = object.get_pairs("meta")?;
    Ok(hold)
}

fn parse_subscription(channel: JsonNode<'_>) -> Result<Subscription, InstructionError> {
    let object = channel.as_object()?;
    let name = object.get_text("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| object.shape_error_at("name", "a channel's name"))?;
    let filters = object.get_text_list("filters")?;
    let filters = filters.iter().map(|filter| parse_filter(name, filter));
    Ok(Subscription {
        channel: name.into(),
        prev_id: object.get_text("prev-id")?.map(Into::into),
        filters: filters.collect::<Result<_, _>>()?,
    })
}

fn parse_keep_alive(object: &JsonObject<'_>) -> Result<Option<StreamKeepAlive>, JsonShapeError> {
    let bytes = object.get_bytes("content")?.unwrap_or_default();
    let seconds = object.get_number("timeout")?;
    let regardless = match object.get_text("mode")? {
        None | Some("idle") => false,
        Some("interval") => true,
        Some(_) => return Err(object.shape_error_at("mode", "`idle` or `interval`")),
    };
    Ok(build_keep_alive(bytes, seconds, regardless))
}

fn parse_response(
    object: &JsonObject<'_>,
    otherwise: Status,
) -> Result<(Status, FieldBlock, Bytes), JsonShapeError> {
    let status = publish_format::parse_status(object)?.unwrap_or(otherwise);
    // Penstock has its own; this only has to be a text.
    object.get_text("reason")?;
    let fields = publish_format::parse_headers(object)?;
    let body = object.get_bytes("body")?.unwrap_or_default();
    Ok((status, fields, body))
}
