import middy, { type MiddlewareObj } from '@middy/core';
import type { Context } from 'aws-lambda';
import type { NotReady } from '../lib/app/readiness.ts';
import type { Caller, Headers } from '../lib/auth/authenticate.ts';
import { ApiError } from '../lib/base/errors.ts';
import type { Log } from '../lib/base/log.ts';
import { type ErrorForm, errorForm } from '../lib/http/error-form.ts';
import { type ApiEvent, type ApiHandler, type ApiResult, requestIdHeaders, requestIdOf } from '../lib/http/event.ts';
import { renderError } from '../lib/http/render.ts';

/** The parts of the application that every route uses. */
export interface GateDeps {
  log: Log;
  /** Null when migrations, catalogue and stores are ready. */
  notReady(): NotReady | null;
  /** Returns the caller of these headers, by the catalogue in use; throws ApiError 401. */
  authenticate(headers: Headers): Promise<Caller>;
}

/** A handler of a known caller. It throws ApiError and never sees the wire form of an error. */
export type Authenticated = (event: ApiEvent, caller: Caller) => Promise<ApiResult>;

/**
 * Makes a plain function a Lambda handler: request ids on every answer, errors as HTTP by the one exit, 503 until ready,
 * then authentication.
 */
export function authenticated(app: GateDeps, handle: Authenticated): ApiHandler {
  return open(app, async (event) => handle(event, await callerOf(app, event)));
}

/**
 * Returns the caller, by the headers alone. Throws ApiError 503 until the service is ready, 401 if they are refused.
 */
export async function callerOf(app: GateDeps, event: ApiEvent): Promise<Caller> {
  const unready = app.notReady();
  if (unready) throw new ApiError(unready.code, unready.reason);
  return app.authenticate(event.headers);
}

/** The same for a route that asks for no credential and answers before the service is ready. */
export function open(app: Pick<GateDeps, 'log'>, handle: (event: ApiEvent) => Promise<ApiResult>): ApiHandler {
  return middy<ApiEvent, ApiResult, Error, Context>(handle).use(answers(app.log)) as ApiHandler;
}

function formOf({ rawPath, headers }: ApiEvent): ErrorForm {
  return errorForm(rawPath, headers);
}

function answers(log: Log): MiddlewareObj<ApiEvent, ApiResult, Error, Context> {
  const stamp = (event: ApiEvent, result: ApiResult) =>
    Object.assign(result.headers, requestIdHeaders(requestIdOf(event)));
  return {
    after: ({ event, response }) => {
      if (response) stamp(event, response);
    },
    onError: (request) => {
      request.response = renderError(request.error, requestIdOf(request.event), log, formOf(request.event));
      stamp(request.event, request.response);
    },
  };
}
