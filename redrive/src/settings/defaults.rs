//! What the settings mean for one call or task. Made anew whenever they change, so that reading it costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::new_task::default_policy;
use crate::policy::Policy;
use crate::retryable::{FirstTry, Persist, Retryable, policy_of};

use super::{PolicyPatch, Settings};

/// What holds for calls and tasks that do not say otherwise. Changed at run time.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The policy.
    pub policy: Arc<Policy>,
    /// When calls are written down.
    pub persist: Persist,
    methods: BTreeMap<String, Override>,
}

/// What the settings want otherwise for one method.
#[derive(Clone, Debug, PartialEq)]
struct Override {
    patch: PolicyPatch,
    persist: Option<Persist>,
    /// A default policy, and the same with the patch: made once, shared by all tasks of the method.
    made: (Arc<Policy>, Arc<Policy>),
}

impl Default for Defaults {
    fn default() -> Self {
        Self { policy: default_policy(), persist: Persist::default(), methods: BTreeMap::new() }
    }
}

impl Defaults {
    /// The policy of a task of this method that has none of its own.
    pub fn policy_for(&self, method: &str) -> Arc<Policy> {
        match self.methods.get(method) {
            None => self.policy.clone(),
            Some(Override { made: (base, made), .. }) if Arc::ptr_eq(base, &self.policy) => made.clone(),
            Some(other) => Arc::new(other.patch.over((*self.policy).clone())),
        }
    }

    /// A call's own policy with what the settings want otherwise for its method.
    pub fn adjusted(&self, method: &str, policy: Policy) -> Policy {
        match self.methods.get(method) {
            None => policy,
            Some(other) => other.patch.over(policy),
        }
    }

    /// The policy of a call: its code's, below what the settings want otherwise for its method, below what its caller asks for.
    pub(crate) fn policy_of<C: Retryable>(&self, call: &C) -> Policy {
        call.asked_policy(self.adjusted(call.method(), policy_of(call, &self.policy)))
    }

    /// When a call is written down, and what its first try needs of its policy.
    pub(crate) fn first_try<C: Retryable>(&self, call: &C) -> (Persist, FirstTry) {
        if !self.methods.contains_key(call.method()) {
            let persist = call.asked_persist().or_else(|| call.persist()).unwrap_or(self.persist);
            return (persist, call.first_try(&self.policy));
        }
        let persist = call.asked_persist().unwrap_or_else(|| self.persist_for(call.method(), call.persist()));
        (persist, FirstTry::of(&self.policy_of(call)))
    }

    /// When calls of this method are written down, if the call itself says `own`. The settings of the method win over it.
    pub fn persist_for(&self, method: &str, own: Option<Persist>) -> Persist {
        self.methods.get(method).and_then(|other| other.persist).or(own).unwrap_or(self.persist)
    }

    /// Settings with these on top: what is not as it is built in wins.
    pub(crate) fn over(&self, settings: &mut Settings) {
        settings.defaults.extend(&PolicyPatch::from(&*self.policy));
        if self.persist != Persist::default() {
            settings.persist = self.persist;
        }
        for (method, ours) in &self.methods {
            let theirs = settings.methods.entry(method.clone()).or_default();
            theirs.policy.extend(&ours.patch);
            theirs.persist = ours.persist.or(theirs.persist);
        }
    }
}

impl From<&Settings> for Defaults {
    fn from(settings: &Settings) -> Self {
        // The built-in one is known by where it lies: tasks under it are cheaper to write.
        let policy = settings.defaults.over(Policy::default());
        let policy = if policy == Policy::default() { default_policy() } else { Arc::new(policy) };
        let methods = settings.methods.iter().filter(|(_, m)| !m.policy.is_empty() || m.persist.is_some());
        let methods = methods.map(|(method, m)| {
            let made = (policy.clone(), Arc::new(m.policy.over((*policy).clone())));
            (method.clone(), Override { patch: m.policy.clone(), persist: m.persist, made })
        });
        Self { methods: methods.collect(), policy, persist: settings.persist }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(toml: &str) -> Defaults {
        Settings::parse(toml, [].into_iter()).unwrap().to_defaults()
    }

    #[test]
    fn a_method_without_settings_shares_the_default_policy() {
        let defaults = defaults("[defaults]\nmax_attempts = 5\n[methods.m]\nmax_crashes = 1");
        assert!(Arc::ptr_eq(&defaults.policy_for("other"), &defaults.policy));
        assert!(Arc::ptr_eq(&defaults.policy_for("m"), &defaults.policy_for("m")));
        let policy = defaults.policy_for("m");
        assert_eq!((policy.max_attempts, policy.max_crashes), (Some(5), 1));
    }

    #[test]
    fn without_settings_it_is_the_built_in_policy_itself() {
        for defaults in [defaults(""), Defaults::default()] {
            assert!(Arc::ptr_eq(&defaults.policy_for("m"), &default_policy()));
        }
    }

    #[test]
    fn a_changed_default_policy_is_below_what_methods_want() {
        let mut defaults = defaults("[methods.m]\nmax_crashes = 1");
        defaults.policy = Arc::new(Policy { max_attempts: Some(2), ..Policy::default() });
        let policy = defaults.policy_for("m");
        assert_eq!((policy.max_attempts, policy.max_crashes), (Some(2), 1));
    }

    #[test]
    fn the_settings_of_a_method_win_over_its_code() {
        let defaults = defaults("persist = 'on_failure'\n[methods.m]\nmax_attempts = 9\npersist = 'always'");
        let own = Policy { max_attempts: Some(2), max_crashes: 7, ..Policy::default() };
        let policy = defaults.adjusted("m", own.clone());
        assert_eq!((policy.max_attempts, policy.max_crashes), (Some(9), 7));
        assert_eq!(defaults.adjusted("other", own.clone()), own);
        let persist = |method, own| defaults.persist_for(method, own);
        assert_eq!(persist("m", Some(Persist::Never)), Persist::Always);
        assert_eq!(persist("other", Some(Persist::Never)), Persist::Never);
        assert_eq!(persist("other", None), Persist::OnFailure);
    }

    #[test]
    fn what_the_program_sets_wins_over_the_file_and_leaves_the_rest() {
        let mut settings = Settings::parse("[defaults]\nmax_attempts = 5\nmax_crashes = 9", [].into_iter()).unwrap();
        let code = Policy { max_attempts: Some(2), ..Policy::default() };
        Defaults { policy: Arc::new(code), ..Defaults::default() }.over(&mut settings);
        let policy = &settings.to_defaults().policy;
        assert_eq!((policy.max_attempts, policy.max_crashes), (Some(2), 9));
    }
}
