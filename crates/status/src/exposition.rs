//! placeholder
use crate::Source;
pub(crate) fn render(_source: &dyn Source) -> String { String::new() }
pub(crate) const CONTENT_TYPE: &str = "";
