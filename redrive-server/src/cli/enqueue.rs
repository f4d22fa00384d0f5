//! `redrive task enqueue`: tasks from a file, or from another program.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use indicatif::HumanCount;
use serde_json::Value;

use super::api::Api;
use super::failure::Failure;
use super::out::{Out, aside, line, text};

/// Of one request: so many tasks, and about so many bytes.
const MOST: usize = 1_000;
const MOST_BYTES: usize = 4 * 1024 * 1024;

pub(super) async fn run(file: Option<&Path>, api: &Api, out: Out) -> anyhow::Result<()> {
    let tasks = tasks(&read(file)?)?;
    match tasks.as_slice() {
        [] => Err(Failure::invalid("there is no task in it").into()),
        [task] => {
            let answer = api.post(&["tasks"], task).await?;
            Ok(out.say(&answer, described(&answer))?)
        }
        tasks => many(tasks, api, out).await,
    }
}

fn read(file: Option<&Path>) -> anyhow::Result<String> {
    if let Some(file) = file.filter(|file| *file != Path::new("-")) {
        return std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
    Ok(text)
}

/// Objects one after the other, in whatever lines; or lists of them.
fn tasks(text: &str) -> Result<Vec<Value>, Failure> {
    let mut tasks = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter() {
        match value {
            Ok(Value::Array(list)) => tasks.extend(list),
            Ok(task) => tasks.push(task),
            Err(e) => return Err(Failure::invalid(format!("after {} tasks: {e}; nothing was done", tasks.len()))),
        }
    }
    Ok(tasks)
}

fn described(answer: &Value) -> String {
    let (id, state) = (text(answer, "id"), text(answer, "state"));
    match (state.as_str(), text(answer, "existed").as_str()) {
        ("", "true") => format!("{id} was there already"),
        ("", _) => format!("{id} is written down"),
        ("done", _) => "done, at the first try".into(),
        _ => format!("{id} {state}: {}", text(answer, "error")).trim_start().to_owned(),
    }
}

/// Requests of a bounded size. Those that are refused do not hold up the others.
async fn many(tasks: &[Value], api: &Api, out: Out) -> anyhow::Result<()> {
    let (mut new, mut existed, mut refused, mut n) = (0_u64, 0_u64, 0_u64, 0_usize);
    let mut rest = tasks.iter().map(|task| format!("{task}\n")).peekable();
    while rest.peek().is_some() {
        let (mut body, mut here) = (String::new(), 0);
        while let Some(task) = rest.next_if(|task| here == 0 || (here < MOST && body.len() + task.len() <= MOST_BYTES))
        {
            body += &task;
            here += 1;
        }
        let mut lines = api.post_for_lines(&["tasks", "bulk"], body).await?;
        while let Some(answer) = lines.next().await? {
            n += 1;
            match (answer.get("problem"), answer.get("existed").and_then(Value::as_bool)) {
                (Some(problem), _) => {
                    refused += 1;
                    aside(format!("task {n} is refused: {}", Failure::of(problem)));
                }
                (None, Some(true)) => existed += 1,
                (None, _) => new += 1,
            }
            if out.json {
                line(&answer)?;
            }
        }
    }
    if !out.json {
        line(format!("{} written down, {} there already", HumanCount(new), HumanCount(existed)))?;
    }
    match tasks.len() - n {
        0 if refused == 0 => Ok(()),
        0 => Err(Failure::invalid(format!("{} refused", HumanCount(refused))).into()),
        lost => Err(Failure::new(Failure::UNREACHABLE, format!("of {lost} there was no answer")).into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_are_read_however_they_are_written() {
        for text in ["{\"a\":1}\n{\"a\":2}\n", "[{\"a\":1},\n{\"a\":2}]", "{\n\"a\": 1 } {\"a\":2}"] {
            assert_eq!(tasks(text).unwrap(), [json!({ "a": 1 }), json!({ "a": 2 })], "{text}");
        }
        assert!(tasks("{\"a\":1}\n{oops").unwrap_err().to_string().contains("after 1"));
        assert!(tasks(" \n").unwrap().is_empty());
    }
}
