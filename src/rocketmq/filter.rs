//! Which messages of a topic a consumer wants.

use super::wire::pb;

/// A filter that the server applies (`FilterExpression`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterExpression {
    kind: pb::FilterType,
    expression: String,
}

impl FilterExpression {
    /// Every message.
    pub fn all() -> Self {
        Self::tags("*")
    }

    /// Messages with one of these tags: `"a"`, or `"a||b"`; `"*"` means all.
    pub fn tags(expression: impl Into<String>) -> Self {
        Self { kind: pb::FilterType::TAG, expression: expression.into() }
    }

    /// Messages whose properties fulfil an SQL92 condition, such as `"region = 'north' AND amount > 10"`. The server
    /// checks it when it is first used.
    pub fn sql(expression: impl Into<String>) -> Self {
        Self { kind: pb::FilterType::SQL, expression: expression.into() }
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.expression.trim().is_empty().then(|| "filter: the expression must not be blank".to_owned())
    }

    pub(crate) fn to_proto(&self) -> pb::FilterExpression {
        pb::FilterExpression { type_: self.kind.into(), expression: self.expression.clone(), ..Default::default() }
    }
}

impl Default for FilterExpression {
    fn default() -> Self {
        Self::all()
    }
}
