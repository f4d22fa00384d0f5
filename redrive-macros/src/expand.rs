//! What a retryable fn becomes: a type that holds a call, a fn that makes one, and the type's `Retryable`.
//!
//! ```text
//! pub struct pay<'a> { order: &'a Order, cents: u64 }                         // a call, as it is written down
//! pub fn pay<'a>(order: &'a Order, cents: u64) -> pay<'a> { … }               // makes one
//! const _: () = {
//!     impl __Body { async fn pay(cx: &Context<'_>, order: &Order, cents: u64) -> … { … } }      // as the user wrote it
//!     impl Retryable for pay<'_> { … }                                        // the first try
//!     struct __Stored { order: Order, cents: u64 }                            // a call, as it is read back
//!     impl Retryable for __Stored { … }                                       // all other tries: the same text
//!     inventory::submit! { Registration::of::<__Stored>() }
//! };
//! ```
//!
//! A struct with named fields is a type and no value, so the fn can have the same name. A call that borrows nothing is read
//! back as itself: there is no `__Stored`. The fn's body sees the name of the fn as all others see it: as that which makes a
//! call.
//!
//! `pay` and `__Stored` have the same text of `Retryable`, since `&self.order` is an `&Order` in both, by coercion.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Ident, Path};

use crate::errors::Errors;
use crate::options::Options;
use crate::signature::{Argument, Call, both_types};
use crate::value::SuccessIf;

pub(crate) fn expand(call: &Call, options: &Options) -> Tokens {
    let (call_type, constructor, body) = (call_type(call), constructor(call), body(call));
    let (name, conditions) = (call.name(), &call.conditions);
    let lifetime = call.borrows().then(|| quote!(<'_>));
    let tried_first = retryable(call, options, &quote!(#name #lifetime));
    let (read_back, stored) = stored(call, options);
    quote! {
        #call_type
        #constructor
        #(#conditions)*
        const _: () = {
            #body
            #tried_first
            #stored
            ::redrive::__private::inventory::submit! { ::redrive::Registration::of::<#read_back>() }
        };
    }
}

/// The type of a call.
fn call_type(call: &Call) -> Tokens {
    let Call { docs, conditions, .. } = call;
    let (visibility, name) = (&call.function.vis, call.name());
    let lifetime = call.borrows().then(|| quote!(<'a>));
    let fields = fields(call, given);
    let read_back = (!call.borrows()).then(|| quote!(, ::redrive::__private::serde::Deserialize));
    let form = serde_form(call);
    quote! {
        #(#docs)*
        #(#conditions)*
        #[allow(non_camel_case_types, dead_code, missing_docs, missing_debug_implementations)]
        #[must_use = "a call does nothing until it is given to an engine: `redrive.call(…)` or `redrive.enqueue(…)`"]
        #[derive(::core::clone::Clone, ::redrive::__private::serde::Serialize #read_back)]
        #form
        #visibility struct #name #lifetime { #fields }
    }
}

/// The fn that makes a call.
fn constructor(call: &Call) -> Tokens {
    let Call { docs, conditions, notices, .. } = call;
    let (visibility, name) = (&call.function.vis, call.name());
    let lifetime = call.borrows().then(|| quote!(<'a>));
    let names: Vec<_> = call.arguments.iter().map(|argument| &argument.name).collect();
    let types = call.arguments.iter().map(given);
    let nothing = names.is_empty().then(|| quote!(nothing: ()));
    quote! {
        #(#docs)*
        #(#conditions)*
        #(#notices)*
        #[allow(dead_code, clippy::too_many_arguments)]
        #visibility fn #name #lifetime (#(#names: #types),*) -> #name #lifetime {
            #name { #(#names,)* #nothing }
        }
    }
}

/// The fn as the user wrote it.
fn body(call: &Call) -> Tokens {
    let (attributes, signature, block) = (&call.function.attrs, &call.function.sig, &call.function.block);
    quote! {
        #[allow(dead_code)]
        enum __Body {}
        impl __Body {
            #(#attributes)*
            #signature #block
        }
    }
}

/// The type that a call is read back as and, if it is not the call's own, its definition.
fn stored(call: &Call, options: &Options) -> (Tokens, Tokens) {
    let name = call.name();
    if !call.borrows() {
        return (quote!(#name), quote!());
    }
    let (form, fields) = (
        serde_form(call),
        fields(call, |argument| {
            let ty = &argument.stored;
            quote!(#ty)
        }),
    );
    let tried_again = retryable(call, options, &quote!(__Stored));
    let definition = quote! {
        #[derive(::redrive::__private::serde::Serialize, ::redrive::__private::serde::Deserialize)]
        #form
        struct __Stored { #fields }
        #tried_again
    };
    (quote!(__Stored), definition)
}

/// The type of an argument in the call.
fn given(argument: &Argument) -> Tokens {
    let stored = &argument.stored;
    argument.target.as_ref().map_or_else(|| quote!(#stored), |target| quote!(&'a #target))
}

/// The fields of a call. `()` is what becomes of no arguments: as JSON it is `null`.
fn fields(call: &Call, ty: impl Fn(&Argument) -> Tokens) -> Tokens {
    if call.arguments.is_empty() {
        return quote!(nothing: ());
    }
    let fields = call.arguments.iter().map(|argument| {
        let (serde, name, ty) = (&argument.serde, &argument.name, ty(argument));
        quote!(#(#serde)* #name: #ty)
    });
    quote!(#(#fields),*)
}

/// A lone argument is stored as it is; several are an object by their names.
fn serde_form(call: &Call) -> Tokens {
    let transparent = (call.arguments.len() < 2).then(|| quote!(, transparent));
    quote!(#[serde(crate = "::redrive::__private::serde" #transparent)])
}

/// `impl Retryable` for a type that has the arguments as its fields.
fn retryable(call: &Call, options: &Options, this: &Tokens) -> Tokens {
    let (method, types, execute) = (method(call, options), types(call), execute(call));
    let methods = [
        policy(call, options),
        first_try(options),
        is_success(call, options),
        classify(options),
        result(options),
        key_and_business(call, options),
        constants(options),
        callback("on_success", options.on_success.as_ref()),
        callback("on_final_failure", options.on_final_failure.as_ref()),
    ];
    quote! {
        #[automatically_derived]
        #[allow(unused_variables, unreachable_patterns, elided_lifetimes_in_paths)]
        impl ::redrive::Retryable for #this {
            const METHOD: &'static str = #method;
            #types
            #execute
            #(#methods)*
        }
    }
}

/// The name given, else where the fn is.
fn method(call: &Call, options: &Options) -> Tokens {
    let name = syn::ext::IdentExt::unraw(call.name()).to_string();
    match &options.name {
        Some(given) => quote!(#given),
        None => quote!(::core::concat!(::core::module_path!(), "::", #name)),
    }
}

fn types(call: &Call) -> Tokens {
    let result = &call.result;
    match both_types(result) {
        Some((output, error)) => quote!(type Output = #output; type Error = #error;),
        None => quote! {
            type Output = <#result as ::redrive::__private::IsResult>::Ok;
            type Error = <#result as ::redrive::__private::IsResult>::Err;
        },
    }
}

fn execute(call: &Call) -> Tokens {
    let (cx, name) = (local("cx"), call.name());
    let context = call.takes_context.then(|| quote!(#cx,));
    let arguments = call.arguments.iter().map(|argument| {
        let name = &argument.name;
        if argument.target.is_some() { quote!(&self.#name) } else { quote!(::core::clone::Clone::clone(&self.#name)) }
    });
    quote! {
        async fn execute(
            &self,
            #cx: &::redrive::Context<'_>,
        ) -> ::core::result::Result<Self::Output, Self::Error> {
            __Body::#name(#context #(#arguments),*).await
        }
    }
}

/// A name that no expression of the user can mean.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The arguments by their names, as references, for expressions of the user.
fn arguments(call: &Call) -> Tokens {
    let bindings = call.arguments.iter().map(|argument| {
        let (name, ty) = (&argument.name, argument.target.as_ref().unwrap_or(&argument.stored));
        quote!(let #name: &#ty = &self.#name;)
    });
    quote!(#(#bindings)*)
}

/// The policy, with what was given. One of the lists replaces both of the defaults'.
fn policy(call: &Call, options: &Options) -> Tokens {
    let mut fields = options.policy.clone();
    if options.retry_for.is_some() || options.no_retry_for.is_some() {
        let (retry_for, no_retry_for) = (kinds(options.retry_for.as_ref()), kinds(options.no_retry_for.as_ref()));
        fields.push(quote!(retry_for: #retry_for));
        fields.push(quote!(no_retry_for: #no_retry_for));
    }
    if let Some(SuccessIf::Cel(condition)) = &options.success_if {
        let condition = quote!(::std::borrow::Cow::Borrowed(#condition));
        fields.push(quote!(success_if: ::core::option::Option::Some(#condition)));
    }
    if fields.is_empty() {
        return quote!();
    }
    let (defaults, arguments) = (local("defaults"), arguments(call));
    quote! {
        fn policy(&self, #defaults: ::redrive::Policy) -> ::redrive::Policy {
            #arguments
            ::redrive::Policy { #(#fields,)* ..#defaults }
        }
    }
}

/// What a first try needs of the policy, without making all of it; a deadline is of the arguments, so there it takes all.
fn first_try(options: &Options) -> Tokens {
    if options.has_deadline {
        return quote!();
    }
    let defaults = local("defaults");
    let timeout = options.timeout.clone().unwrap_or_else(|| quote!(#defaults.timeout));
    let judged = matches!(options.success_if, Some(SuccessIf::Cel(_))) || options.on_success.is_some() || options.keep;
    let plain = if judged { quote!(false) } else { quote!(::redrive::FirstTry::is_plain(#defaults)) };
    quote! {
        #[inline]
        fn first_try(&self, #defaults: &::redrive::Policy) -> ::redrive::FirstTry {
            ::redrive::FirstTry { timeout: #timeout, deadline: #defaults.deadline, plain: #plain }
        }
    }
}

/// The kinds of a list. That it has patterns, too, is one more, which no error is of: so the policy knows that there is a
/// list, and whoever reads it, that there is more to it.
fn kinds(errors: Option<&Errors>) -> Tokens {
    let kinds = errors.into_iter().flat_map(|errors| &errors.kinds);
    let patterns = errors.filter(|errors| !errors.patterns.is_empty()).map(|_| "(patterns)");
    let patterns = patterns.into_iter();
    quote!(::std::vec![#(::redrive::Kind::of(#kinds),)* #(::redrive::Kind::of(#patterns)),*])
}

fn is_success(call: &Call, options: &Options) -> Tokens {
    let Some(SuccessIf::Test(test)) = &options.success_if else { return quote!() };
    let (output, arguments) = (local("output"), arguments(call));
    quote! {
        fn is_success(&self, #output: &Self::Output) -> bool {
            #arguments
            ::redrive::__private::holds(#output, #test)
        }
    }
}

/// Patterns first, then kinds by the policy.
fn classify(options: &Options) -> Tokens {
    let (error, verdict) = (local("error"), local("verdict"));
    let when = |errors: &Option<Errors>, decided: &str| {
        let (patterns, decided) = (errors.as_ref().map(|errors| &*errors.patterns).unwrap_or_default(), local(decided));
        (!patterns.is_empty()).then(|| {
            quote! {
                if #(::core::matches!(#error, #patterns))||* {
                    return ::redrive::__private::#decided(#verdict);
                }
            }
        })
    };
    let (fatal, retry) = (when(&options.no_retry_for, "fatal"), when(&options.retry_for, "retry"));
    quote! {
        fn classify(&self, #error: &Self::Error) -> ::redrive::Verdict {
            let #verdict = {
                #[allow(unused_imports)]
                use ::redrive::__private::{
                    Decided as _, Described as _, Kinded as _, Kindless as _, Mute as _, Shown as _, Told as _, Undecided as _,
                };
                let seen = &&&&::redrive::__private::Seen(#error);
                seen.decided().unwrap_or_else(|| ::redrive::__private::failed(seen.kind(), seen.text()))
            };
            #fatal
            #retry
            #verdict
        }
    }
}

/// The result as JSON, if it can be. A CEL condition can do nothing without it, so then it must be.
fn result(options: &Options) -> Tokens {
    let output = local("output");
    let json = match &options.success_if {
        Some(SuccessIf::Cel(condition)) => quote_spanned!(condition.span()=> ::redrive::__private::json(#output)),
        _ => quote! {{
            #[allow(unused_imports)]
            use ::redrive::__private::{Json as _, NoJson as _};
            (&&::redrive::__private::Seen(#output)).json()
        }},
    };
    quote! {
        fn result(&self, #output: &Self::Output) -> ::core::option::Option<::redrive::__private::serde_json::Value> {
            #json
        }
    }
}

fn key_and_business(call: &Call, options: &Options) -> Tokens {
    let arguments = arguments(call);
    let key = options.key.as_ref().map(|key| {
        quote! {
            fn key(&self) -> ::redrive::Key {
                #arguments
                #key
            }
        }
    });
    let business = options.business.as_ref().map(|business| {
        quote! {
            fn business(&self) -> ::core::option::Option<::redrive::Business> {
                #arguments
                ::core::option::Option::Some(#business)
            }
        }
    });
    quote!(#key #business)
}

/// What does not depend on the arguments.
fn constants(options: &Options) -> Tokens {
    let persist = options.persist.as_ref().map(|persist| {
        quote!(fn persist(&self) -> ::core::option::Option<::redrive::Persist> { ::core::option::Option::Some(#persist) })
    });
    let priority = options.priority.as_ref().map(|priority| quote!(fn priority(&self) -> i16 { #priority }));
    let encrypt = options.encrypt.then(|| {
        quote!(
            fn encrypt(&self) -> bool {
                true
            }
        )
    });
    quote!(#persist #priority #encrypt)
}

/// The method of another retryable fn.
fn callback(when: &str, path: Option<&Path>) -> Tokens {
    let Some(path) = path else { return quote!() };
    let when = Ident::new(when, path.span());
    quote! {
        fn #when(&self) -> ::core::option::Option<&'static str> {
            ::core::option::Option::Some(<#path as ::redrive::Retryable>::METHOD)
        }
    }
}
