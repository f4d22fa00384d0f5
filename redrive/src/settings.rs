//! Settings: what holds for calls and tasks that do not say otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::policy::Policy;
use crate::retryable::Persist;

/// What holds for calls and tasks that do not say otherwise. Changed at run time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// The policy.
    pub policy: Arc<Policy>,
    /// When calls are written down.
    pub persist: Persist,
    methods: BTreeMap<String, ()>,
}

impl Defaults {
    /// The policy of a task of this method that has none of its own.
    pub fn policy_for(&self, method: &str) -> Arc<Policy> {
        _ = (method, &self.methods);
        self.policy.clone()
    }

    /// A call's own policy with what the settings want otherwise for its method.
    pub fn adjusted(&self, method: &str, policy: Policy) -> Policy {
        _ = method;
        policy
    }
}
