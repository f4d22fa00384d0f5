//! `redrive task enqueue`: tasks from a file, or from another program.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use indicatif::HumanCount;
use serde_json::Value;

use super::api::Api;
use super::failure::Failure;
use super::out::{Out, aside, heard_or_not, line, text};

/// Of one request: so many tasks, and about so many bytes.
const MOST: usize = 1_000;
const MOST_BYTES: usize = 4 * 1024 * 1024;

pub(super) async fn run(file: Option<&Path>, api: &Api, out: Out) -> anyhow::Result<()> {
    let tasks = tasks(&read(file)?)?;
    match tasks.as_slice() {
        [] => Err(Failure::invalid("there is no task in it").into()),
        [task] => {
            let answer = post(task, api).await?;
            heard_or_not(out.say(&answer, described(&answer)))?;
            delivered(&answer)
        }
        tasks => many(tasks, api, out).await,
    }
}

/// Who waits for a first try waits for as long as that may take: hanging up would break it off.
async fn post(task: &Value, api: &Api) -> Result<Value, Failure> {
    match task.get("wait") {
        Some(Value::Bool(true)) => api.post_patiently(&["tasks"], task).await,
        _ => api.post(&["tasks"], task).await,
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
        ("done", _) if text(answer, "error").is_empty() => "done, at the first try".into(),
        ("done", _) => text(answer, "error"),
        _ => format!("{id} {state}: {}", text(answer, "error")).trim_start().to_owned(),
    }
}

/// What was tried at once, and is not tried again, has failed.
fn delivered(answer: &Value) -> anyhow::Result<()> {
    match text(answer, "state").as_str() {
        state @ ("rejected" | "exhausted") => Err(Failure::failed(format!("it was not delivered: {state}")).into()),
        _ => Ok(()),
    }
}

/// What became of many.
#[derive(Default)]
struct Tally {
    new: u64,
    existed: u64,
    refused: u64,
    /// The exit code of those that were refused for what is not of themselves: the server stops, or has no database.
    code: Option<u8>,
}

impl Tally {
    fn answered(&self) -> u64 {
        self.new + self.existed + self.refused
    }

    fn count(&mut self, answer: &Value) {
        match (answer.get("problem"), answer.get("existed").and_then(Value::as_bool)) {
            (Some(problem), _) => {
                let failure = Failure::of(problem);
                self.refuse(&failure);
                aside(format!("task {} is refused: {failure}", self.answered()));
            }
            (None, Some(true)) => self.existed += 1,
            (None, _) => self.new += 1,
        }
    }

    fn refuse(&mut self, failure: &Failure) {
        self.refused += 1;
        self.code = self.code.max((!failure.is_of_one()).then_some(failure.code()));
    }

    /// Whether that was all of them.
    fn verdict(&self, tasks: usize) -> Result<(), Failure> {
        match (tasks as u64).saturating_sub(self.answered()) {
            0 if self.refused == 0 => Ok(()),
            0 => {
                let said = format!("{} refused", HumanCount(self.refused));
                Err(Failure::new(self.code.unwrap_or(Failure::INVALID), said))
            }
            lost => Err(Failure::new(Failure::UNREACHABLE, format!("of {lost} there was no answer"))),
        }
    }
}

/// What was written down is said, also if not all of them could be sent.
async fn many(tasks: &[Value], api: &Api, out: Out) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    let sent = send(tasks, api, out, &mut tally).await;
    let said = match out.json {
        true => Ok(()),
        false => line(format!("{} written down, {} there already", HumanCount(tally.new), HumanCount(tally.existed))),
    };
    sent?;
    heard_or_not(said)?;
    Ok(tally.verdict(tasks.len())?)
}

/// Requests of a bounded size. Those that are refused do not hold up the others.
async fn send(tasks: &[Value], api: &Api, out: Out, tally: &mut Tally) -> anyhow::Result<()> {
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
            tally.count(&answer);
            if out.json {
                heard_or_not(line(&answer))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_refused_for_another_s_fault_may_be_sent_again() {
        let code = |statuses: &[u16]| {
            let mut tally = Tally::default();
            let failed = |status: &u16| Failure::of(&json!({ "status": status, "detail": "no" }));
            statuses.iter().map(failed).for_each(|failure| tally.refuse(&failure));
            tally.verdict(statuses.len()).unwrap_err().code()
        };
        assert_eq!((code(&[422]), code(&[409, 422])), (Failure::INVALID, Failure::INVALID));
        assert_eq!((code(&[422, 503, 422]), code(&[503, 500])), (Failure::UNREACHABLE, Failure::UNREACHABLE));
        assert_eq!(code(&[500, 422]), Failure::FAILED);
    }

    #[test]
    fn tasks_are_read_however_they_are_written() {
        for text in ["{\"a\":1}\n{\"a\":2}\n", "[{\"a\":1},\n{\"a\":2}]", "{\n\"a\": 1 } {\"a\":2}"] {
            assert_eq!(tasks(text).unwrap(), [json!({ "a": 1 }), json!({ "a": 2 })], "{text}");
        }
        assert!(tasks("{\"a\":1}\n{oops").unwrap_err().to_string().contains("after 1"));
        assert!(tasks(" \n").unwrap().is_empty());
    }
}
