//! Policy fields that are given: laid over a policy, they replace those fields and leave the others.
//!
//! No check of a [`Policy`] looks at two fields together, so a patch that is valid by itself is valid over every policy, and
//! laying it over one cannot fail.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Problems, Result};
use crate::policy::Policy;

use super::sources::{scrubbed, unknown};

/// Some fields of a [`Policy`], as they are written in the settings.
///
/// TOML has no null, so there are words for "none": `max_attempts`, `max_duration`, `deadline` and `timeout` may be
/// `"unlimited"`, `notify` may be `"never"`, and `success_if`, `on_success` and `on_final_failure` may be empty.
///
/// ```
/// use redrive::{Policy, PolicyPatch};
///
/// let mut patch = PolicyPatch::default();
/// patch.set("max_attempts", "unlimited")?;
/// patch.set("retry_for", vec!["timeout"])?;
/// let policy = patch.over(Policy { max_crashes: 9, ..Policy::default() });
/// assert_eq!((policy.max_attempts, policy.retry_for.len(), policy.max_crashes), (None, 1, 9));
///
/// assert!(patch.set("max_attemps", 5).unwrap_err().to_string().contains("max_attempts"));
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "Map<String, Value>", try_from = "Map<String, Value>")]
pub struct PolicyPatch {
    /// As they were written.
    given: Map<String, Value>,
    /// As they are meant; what is not given has its default and is not looked at.
    values: Box<Policy>,
}

/// Names every field of [`Policy`] once. A field that is missing here does not compile.
macro_rules! fields {
    ($($field:ident),*) => {
        /// The names of a policy's fields.
        pub(super) const FIELDS: &[&str] = &[$(stringify!($field)),*];

        fn copy(field: &str, from: &Policy, to: &mut Policy) {
            let Policy { $($field),* } = from;
            match field {
                $(stringify!($field) => to.$field.clone_from($field),)*
                _ => {}
            }
        }
    };
}

fields!(
    max_attempts,
    max_duration,
    deadline,
    backoff,
    jitter,
    timeout,
    max_retry_after,
    max_postponed,
    retry_for,
    no_retry_for,
    success_if,
    on_exhausted,
    notify,
    max_crashes,
    on_success,
    on_final_failure,
    keep,
    on_crash
);

impl PolicyPatch {
    /// Gives a field. It is refused, and the patch stays as it was, if there is no such field or the value is not valid.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        if !FIELDS.contains(&field) {
            return Err(Error::invalid(field, unknown(field, FIELDS)));
        }
        let one = Map::from_iter([(field.to_owned(), meant(field, &value))]);
        let policy: Policy =
            serde_json::from_value(one.into()).map_err(|e| Error::invalid(field, scrubbed(&e.to_string())))?;
        policy.validate()?;
        copy(field, &policy, &mut self.values);
        self.given.insert(field.to_owned(), value);
        Ok(())
    }

    /// A policy with these fields instead of its own.
    pub fn over(&self, mut policy: Policy) -> Policy {
        self.given.keys().for_each(|field| copy(field, &self.values, &mut policy));
        policy
    }

    /// Whether it gives nothing.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// What is wrong with it: it may have been made from a policy that is not valid.
    pub(super) fn check(&self, path: &str, problems: &mut Problems) {
        if let Err(Error::Invalid(wrong)) = self.values.validate() {
            problems.nest(path, wrong);
        }
    }

    /// Adds what another gives; that wins.
    pub(crate) fn extend(&mut self, other: &Self) {
        *self.values = other.over((*self.values).clone());
        self.given.extend(other.given.clone());
    }
}

/// All fields in which a policy differs from the default.
impl From<&Policy> for PolicyPatch {
    fn from(policy: &Policy) -> Self {
        let Ok(Value::Object(given)) = serde_json::to_value(policy) else { return Self::default() };
        Self { given, values: Box::new(policy.clone()) }
    }
}

impl From<PolicyPatch> for Map<String, Value> {
    fn from(patch: PolicyPatch) -> Self {
        patch.given
    }
}

impl TryFrom<Map<String, Value>> for PolicyPatch {
    type Error = Error;

    fn try_from(fields: Map<String, Value>) -> Result<Self> {
        let (mut patch, mut problems) = (Self::default(), Problems::default());
        for (field, value) in fields {
            if let Err(Error::Invalid(wrong)) = patch.set(&field, value) {
                wrong.iter().for_each(|(field, problem)| problems.add(field, problem));
            }
        }
        problems.into_result()?;
        Ok(patch)
    }
}

/// A value without our words for "none".
fn meant(field: &str, value: &Value) -> Value {
    let none = match field {
        "max_attempts" | "max_duration" | "deadline" | "timeout" => "unlimited",
        "notify" => "never",
        "success_if" | "on_success" | "on_final_failure" => "",
        _ => return value.clone(),
    };
    if value == none { Value::Null } else { value.clone() }
}
