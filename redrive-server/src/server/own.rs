//! Methods that are redrive's own. Their tasks are written by code that has checked what they say: a request that may be sent, a
//! step of a saga, what a saga is told. So nobody names one from outside, neither to be called nor to be called back. What is
//! written down already goes on, and is brought back, as it is.

use redrive::{Error, Policy, Problems, Result, Settings};

/// What a field of a policy names.
type Named = fn(&Policy) -> Option<&str>;

/// The fields of a policy that name methods.
const CALLBACKS: [(&str, Named); 2] = [
    ("on_success", |policy| policy.on_success.as_deref()),
    ("on_final_failure", |policy| policy.on_final_failure.as_deref()),
];

fn is_own(method: &str) -> bool {
    let requests = method == crate::http::METHOD || method.starts_with("http.");
    requests || method == crate::saga::METHOD || method.starts_with("redrive.")
}

/// Refuses to enqueue a method of ours.
pub(super) fn check_method(method: &str) -> Result<()> {
    if !is_own(method) {
        return Ok(());
    }
    let instead =
        "give a request as `http` (`http.target` names a target); sagas are started and told things at /api/v1/sagas";
    Err(Error::invalid("method", format!("{method:?} is redrive's own: {instead}")))
}

/// Refuses callbacks of ours, but for those that the task has: these can be neither changed nor taken away, for somebody waits
/// to hear of it.
pub(crate) fn check_callbacks(policy: &Policy, before: Option<&Policy>) -> Result<()> {
    let mut problems = Problems::default();
    for (field, named) in CALLBACKS {
        match (named(policy), before.and_then(named)) {
            (new, old) if new == old => {}
            (_, Some(old)) if is_own(old) => problems.add(field, format!("must stay {old:?}, which is redrive's own")),
            (Some(new), _) if is_own(new) => problems.add(field, is_ours(new)),
            _ => {}
        }
    }
    problems.into_result()
}

/// The same of settings that are changed.
pub(super) fn check_settings(before: &Settings, after: &Settings) -> Result<()> {
    let (before, mut problems) = (before.flat(), Problems::default());
    for (path, value) in after.flat() {
        let calls_back = CALLBACKS.iter().any(|(field, _)| path.ends_with(&format!(".{field}")));
        let method = value.as_str().filter(|method| calls_back && is_own(method));
        if let Some(method) = method.filter(|_| before.get(&path) != Some(&value)) {
            problems.add(path, is_ours(method));
        }
    }
    problems.into_result()
}

fn is_ours(method: &str) -> String {
    format!("{method:?} is redrive's own: name a method that a handler of yours has")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_are_known_by_their_names() {
        for own in ["http", "http.billing", "saga.http", "redrive.saga.ended", "redrive.x"] {
            assert!(check_method(own).is_err(), "{own}");
        }
        for other in ["https", "httpd.restart", "saga.https", "redrive", "redriven.x", "charge", ""] {
            assert!(check_method(other).is_ok(), "{other}");
        }
    }

    #[test]
    fn a_callback_of_ours_stays_as_it_is() {
        let policy =
            |callback: Option<&'static str>| Policy { on_final_failure: callback.map(Into::into), ..Policy::default() };
        let (ended, paid, none) = (policy(Some("redrive.saga.ended")), policy(Some("paid")), policy(None));
        assert!(check_callbacks(&ended, Some(&ended)).is_ok() && check_callbacks(&paid, Some(&none)).is_ok());
        assert!(check_callbacks(&none, Some(&paid)).is_ok());
        for (after, before) in [(&ended, None), (&ended, Some(&paid)), (&none, Some(&ended)), (&paid, Some(&ended))] {
            let said = check_callbacks(after, before).unwrap_err().to_string();
            assert!(said.starts_with("on_final_failure: ") && said.contains("redrive's own"), "{said}");
        }
    }
}
