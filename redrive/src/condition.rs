//! Success conditions in CEL: `result.code == 200`. Compiled once, kept for the next result.
//!
//! What a condition is about depends on the call: `result` is there for all; an HTTP delivery also gives `status`, `headers`
//! and `body`. A call that has more than its result to give says so in
//! [`Retryable::meets`](crate::Retryable::meets).
//!
//! A condition that cannot be evaluated (a field is missing, types do not fit, it does not give a truth value) is not met: the
//! attempt has failed and is tried again. Why is logged, since that is mostly a mistake in the condition.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use cel::{Context, Program, Value};

/// How many compiled conditions are kept.
const KEPT: usize = 1_000;

static COMPILED: LazyLock<RwLock<HashMap<String, Arc<Program>>>> = LazyLock::new(RwLock::default);

/// Whether it is CEL; if not, why.
pub(crate) fn check(cel: &str) -> Result<(), String> {
    compiled(cel).map(|_| ())
}

/// Whether the condition holds for this result.
pub(crate) fn holds_for_result(cel: &str, result: &serde_json::Value) -> bool {
    holds(cel, &[("result", result)])
}

/// Whether a condition holds for variables of these names.
///
/// ```
/// use redrive::condition;
/// use serde_json::json;
///
/// let (status, body) = (json!(202), json!({"state": "accepted"}));
/// assert!(condition::holds("status < 300 && body.state == 'accepted'", &[("status", &status), ("body", &body)]));
/// assert!(!condition::holds("headers.etag == 'x'", &[("status", &status)])); // there is no such variable
/// ```
pub fn holds(cel: &str, variables: &[(&str, &serde_json::Value)]) -> bool {
    match evaluate(cel, variables) {
        Ok(holds) => holds,
        Err(why) => {
            tracing::warn!(condition = cel, why, "a success condition could not be evaluated, so it is not met");
            false
        }
    }
}

fn evaluate(cel: &str, variables: &[(&str, &serde_json::Value)]) -> Result<bool, String> {
    let program = compiled(cel)?;
    let mut context = Context::default();
    for (name, value) in variables {
        context.add_variable_from_value(*name, to_cel(value));
    }
    match program.execute(&context) {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(other) => Err(format!("it gives {:?}, not true or false", other.type_of())),
        Err(e) => Err(e.to_string()),
    }
}

/// JSON as CEL sees it: whole numbers are `int`, as CEL's own literals are.
fn to_cel(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(n) => {
            n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Int)
        }
        serde_json::Value::String(s) => Value::String(Arc::new(s.clone())),
        serde_json::Value::Array(all) => Value::List(Arc::new(all.iter().map(to_cel).collect())),
        serde_json::Value::Object(all) => Value::from(
            all.iter().map(|(name, value)| (name.clone(), to_cel(value))).collect::<HashMap<String, Value>>(),
        ),
    }
}

fn compiled(cel: &str) -> Result<Arc<Program>, String> {
    let kept = COMPILED.read().unwrap_or_else(PoisonError::into_inner).get(cel).cloned();
    if let Some(program) = kept {
        return Ok(program);
    }
    let program = Arc::new(Program::compile(cel).map_err(|e| e.to_string())?);
    let mut kept = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(cel.to_owned(), program.clone());
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_are_judged() {
        let result = json!({"code": 200, "ok": true, "tags": ["a"], "rate": 0.5, "text": "fine"});
        for cel in [
            "result.code == 200",
            "result.code < 300 && result.ok",
            "'a' in result.tags",
            "result.rate < 1.0",
            "result.text.startsWith('fi')",
        ] {
            assert!(holds_for_result(cel, &result), "{cel}");
        }
        for cel in ["result.code == 500", "result.missing == 1", "result.code", "result.text < 5"] {
            assert!(!holds_for_result(cel, &result), "{cel}");
        }
    }

    #[test]
    fn an_answer_is_judged_by_its_parts() {
        let (status, headers) = (json!(409), json!({"x-state": "done", "content-type": "text/plain"}));
        let holds = |cel: &str, body: serde_json::Value| {
            holds(cel, &[("status", &status), ("headers", &headers), ("body", &body)])
        };
        assert!(holds("status == 409 || status < 300", json!("already there")));
        assert!(holds("headers['x-state'] == 'done'", json!(null)));
        assert!(holds("body.items.size() == 2", json!({"items": [1, 2]})));
        assert!(holds("body.contains('there')", json!("already there")));
        assert!(!holds("body.ok", json!("not JSON, so it has no fields")));
        assert!(!holds("headers['x-other'] == 'done'", json!(null)));
        assert!(holds("!has(body.error)", json!({"ok": true})));
    }

    #[test]
    fn what_is_not_cel_is_refused() {
        assert!(check("result.code ==").is_err());
        assert!(check("result.code == 200").is_ok());
    }
}
