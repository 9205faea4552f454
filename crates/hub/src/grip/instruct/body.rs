//! Instructions in the body of an answer: `application/grip-instruct`, which is JSON.

use bytes::Bytes;
use penstock_http::{FieldBlock, Status};
use serde_json::Value;

use super::{HoldPart, Instruct, InstructError, Mode, filter, keep_alive};
use crate::grip::json::{self, Misfit, Object};
use crate::grip::publish;
use crate::{KeepAlive, Subscription};

pub(super) fn read(
    of_fields: Instruct,
    answered: Status,
    text: &[u8],
) -> Result<Instruct, InstructError> {
    if answered != Status::OK {
        return Err(InstructError::Status(answered.code()));
    }
    let value: Value =
        serde_json::from_slice(text).map_err(|error| InstructError::Json(error.to_string()))?;
    let all = json::as_object(&value)?;
    let hold = match json::object(all, "hold")? {
        Some(object) => Some(hold(object)?),
        None => of_fields.hold,
    };
    let response = json::object(all, "response")?;
    let response = response.map(|object| response_part(object, of_fields.status));
    let within = |misfit: Misfit| misfit.within("response");
    let (status, fields, body) = response.transpose().map_err(within)?.unwrap_or((
        of_fields.status,
        FieldBlock::new(),
        Bytes::new(),
    ));
    if hold
        .as_ref()
        .is_some_and(|hold| hold.subscriptions.is_empty())
    {
        return Err(InstructError::NoChannel);
    }
    Ok(Instruct {
        hold,
        status,
        fields,
        body: Some(body),
        links: of_fields.links,
    })
}

fn hold(object: &Object) -> Result<HoldPart, InstructError> {
    let within = |misfit: Misfit| InstructError::from(misfit.within("hold"));
    let mode = match json::text(object, "mode").map_err(within)? {
        None | Some("response") => Mode::Response,
        Some("stream") => Mode::Stream,
        Some(_) => return Err(within(Misfit::new("mode", "`response` or `stream`"))),
    };
    let mut hold = HoldPart::new(mode);
    let channels = json::list(object, "channels").map_err(within)?;
    for (index, channel) in channels.iter().enumerate() {
        let within = |misfit: Misfit| within(misfit.at(index).within("channels"));
        hold.subscriptions.push(subscription(channel, &within)?);
    }
    if hold.subscriptions.is_empty() {
        return Err(InstructError::NoChannel);
    }
    if let Some(seconds) = json::number(object, "timeout").map_err(within)? {
        hold.wait(seconds);
    }
    if let Some(object) = json::object(object, "keep-alive").map_err(within)? {
        let beat = heart_beat(object);
        hold.keep_alive = beat.map_err(|misfit| within(misfit.within("keep-alive")))?;
    }
    hold.meta = json::pairs(object, "meta").map_err(within)?;
    Ok(hold)
}

fn subscription(
    value: &Value,
    within: &dyn Fn(Misfit) -> InstructError,
) -> Result<Subscription, InstructError> {
    let object = json::as_object(value).map_err(within)?;
    let name = json::text(object, "name").map_err(within)?;
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| within(Misfit::new("name", "a channel's name")))?;
    let filters = json::texts(object, "filters").map_err(within)?;
    let filters = filters.iter().map(|asked| filter(name, asked));
    Ok(Subscription {
        channel: name.into(),
        prev_id: json::text(object, "prev-id")
            .map_err(within)?
            .map(Into::into),
        filters: filters.collect::<Result<_, _>>()?,
    })
}

fn heart_beat(object: &Object) -> Result<Option<KeepAlive>, Misfit> {
    let bytes = json::bytes(object, "content")?.unwrap_or_default();
    let seconds = json::number(object, "timeout")?;
    let regardless = match json::text(object, "mode")? {
        None | Some("idle") => false,
        Some("interval") => true,
        Some(_) => return Err(Misfit::new("mode", "`idle` or `interval`")),
    };
    Ok(keep_alive(bytes, seconds, regardless))
}

fn response_part(
    object: &Object,
    otherwise: Status,
) -> Result<(Status, FieldBlock, Bytes), Misfit> {
    let status = publish::status(object)?.unwrap_or(otherwise);
    // The house has its own; it only has to be a text.
    json::text(object, "reason")?;
    let fields = publish::fields(object)?;
    let body = json::bytes(object, "body")?.unwrap_or_default();
    Ok((status, fields, body))
}
