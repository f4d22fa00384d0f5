//! Success conditions in CEL: `result.code == 200`. Compiled once, kept for the next result.
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
pub(crate) fn holds(cel: &str, result: &serde_json::Value) -> bool {
    holds_for(cel, &[("result", result)])
}

/// The same with variables of other names.
pub(crate) fn holds_for(cel: &str, variables: &[(&str, &serde_json::Value)]) -> bool {
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
            assert!(holds(cel, &result), "{cel}");
        }
        for cel in ["result.code == 500", "result.missing == 1", "result.code", "result.text < 5"] {
            assert!(!holds(cel, &result), "{cel}");
        }
    }

    #[test]
    fn what_is_not_cel_is_refused() {
        assert!(check("result.code ==").is_err());
        assert!(check("result.code == 200").is_ok());
    }
}
