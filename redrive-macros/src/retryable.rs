//! `#[retryable]`: its options and its fn are read, and what is wrong with either is told, before anything is made of them.
//!
//! Wrong options do not take the fn away: it is expanded with the options that are right, so that the compiler complains of
//! the mistake and not of every use of the fn. A fn that cannot be retryable is left as it was written, for the same reason.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::ItemFn;

use crate::expand;
use crate::options::Options;
use crate::problems::Problems;
use crate::signature::Call;

pub(crate) fn expand(options: Tokens, item: Tokens) -> Tokens {
    let mut problems = Problems::default();
    let options = Options::read(options, &mut problems);
    let call = problems.take(function(item.clone())).and_then(|function| Call::read(function, &mut problems));
    let expanded = call.map_or(item, |call| expand::expand(&call, &options));
    let errors = problems.to_tokens();
    quote!(#errors #expanded)
}

fn function(item: Tokens) -> syn::Result<ItemFn> {
    syn::parse2(item).map_err(|e| syn::Error::new(e.span(), format!("`#[retryable]` goes on an async fn: {e}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parts of attributes and fns, right and wrong.
    #[rustfmt::skip]
    const PARTS: [&str; 44] = [
        "name", "max_attempts", "backoff", "jitter", "deadline", "timeout", "persist", "retry_for", "success_if", "key",
        "business", "notify", "keep", "exponential", "fixed", "list", "initial", "factor", "after", "none", "order", "order.id",
        "E::A(..)", "|r| r.ok", "if", "=", "==", ",", ",", "-", "::", "..", "\"1s\"", "\"{order}-{{\"", "\"a{b\"", "\"\"", "5",
        "0.5", "'a", "()", "(\"1s\")", "(initial = \"1s\")", "(after = 3)", "(order, 5)",
    ];

    fn soup() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(&PARTS[..]), 0..12).prop_map(|parts| parts.join(" "))
    }

    fn any_type() -> impl Strategy<Value = String> {
        let name =
            prop::sample::select(vec!["u8", "str", "[u8]", "a::Order", "Context<'_>", "dyn Send", "impl Send", "()"]);
        let around = ["&@", "&mut @", "&'static @", "Option<@>", "Cow<'_, @>", "(@, u8)", "[@; 2]", "fn(@)"];
        let around = prop::collection::vec(prop::sample::select(around.to_vec()), 0..4);
        (name, around).prop_map(|(name, around)| around.iter().fold(name.to_owned(), |ty, form| form.replace('@', &ty)))
    }

    fn is_rust(options: &str, function: &str) -> bool {
        let expanded = expand(options.parse().unwrap(), function.parse().unwrap());
        syn::parse2::<syn::File>(expanded).is_ok()
    }

    proptest! {
        #[test]
        fn whatever_the_options_the_answer_is_rust(options in soup()) {
            let answered = is_rust(&options, "async fn pay(order: &Order, n: u8) -> Result<(), E> { Ok(()) }");
            prop_assert!(answered);
        }

        #[test]
        fn whatever_the_types_the_answer_is_rust(first in any_type(), second in any_type(), output in any_type()) {
            let function = format!("async fn pay(a: {first}, b: {second}) -> Result<{output}, E> {{ Ok(()) }}");
            prop_assert!(is_rust("keep", &function), "{}", function);
        }
    }
}
