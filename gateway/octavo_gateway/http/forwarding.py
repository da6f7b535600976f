"""Forwards the requests of a route: reads the body, chooses the model, admits the request, and counts its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from aiohttp import web

from octavo_gateway.access.api_keys import ApiKey
from octavo_gateway.access.control import AccessControl
from octavo_gateway.api.errors import ApiError, unknown_model
from octavo_gateway.api.request_head import NO_BODY, RequestHead, most_output, read_head
from octavo_gateway.http import headers
from octavo_gateway.http.call import Call
from octavo_gateway.http.proxy import Proxy
from octavo_gateway.http.request_body import BODY_SECONDS, read_body
from octavo_gateway.http.request_keys import ENTRY, ID, MODEL
from octavo_gateway.http.response_finder import ResponseFinder
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry, NamedModel
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.stored_responses import StoredAt
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_gateway.routing.prompt_features import Prompt
from octavo_protocol.routes import ModelIn, Route, UsageForm

# The prompt of a request that needs no engine.
_NO_TOKENS = Prompt(0, 0)


@dataclass(slots=True)
class Forwarding:
    """Handles the requests that replicas answer. `body_seconds`: longest time in which a body arrives."""

    registry: ModelRegistry
    proxy: Proxy
    metrics: GatewayMetrics
    access: AccessControl
    finder: ResponseFinder
    body_seconds: float = BODY_SECONDS

    async def forward(self, route: Route, request: web.Request) -> web.StreamResponse:
        """Answer one request of a route."""
        started = perf_counter()
        entry, body, head = request[ENTRY], b"", NO_BODY
        if route.body_limit:
            body = await read_body(request, route.body_limit, self.body_seconds)
            head = read_head(body, route)
        models = self._models(route, request, head, entry)
        if len(models) == 1:
            request[MODEL] = self.metrics.model(models[0])
        prompt, most = _prompt(route, request, head, entry, models), most_output(head, route.work)
        grant = self.access.enter(entry, prompt.tokens, head.priority, route.usage)
        try:
            model, stored = await self._place(route, request, head, models)
            request[MODEL] = self.metrics.model(model)
            call = Call(
                route,
                _path(route, request),
                body,
                bool(head.stream) and route.streams,
                prompt,
                request[ID],
                started,
                grant,
                RequestAttributes(entry.tenant, grant.priority, most, route.in_engine, model.adapter),
                headers.timeout(request.headers),
                model=request[MODEL],
                stored=stored,
                learn=self._learner(route, entry, model.pool),
            )
            try:
                return await self.proxy.forward(request, model.pool, call)
            finally:
                self._count(route, head, model.pool, call)
        finally:
            self.access.leave(grant)

    def _learner(self, route: Route, entry: ApiKey, pool: ModelPool) -> Callable[[str, Replica], object] | None:
        """Remembers the place of a response; None for routes whose answers are not stored."""
        if route.usage is not UsageForm.RESPONSES:
            return None
        return lambda response, replica: self.finder.learn(entry.tenant, response, pool, replica)

    def _count(self, route: Route, head: RequestHead, pool: ModelPool, call: Call) -> None:
        """Count the tokens of an answer that has ended."""
        usage = call.grant.usage
        if route.usage is UsageForm.RESPONSES and head.background is True:
            # It goes on without a connection, so its usage is never seen: the usual length is charged.
            usage.assume(pool.lengths.expected(call.attributes.most_output))
        if usage.sent and route.usage is not UsageForm.NONE:
            self.metrics.used(call.model, route.template, usage.prompt, usage.output)

    def find(self, name: str, entry: ApiKey) -> NamedModel:
        """A model that the caller may use. Raises `ApiError` 404."""
        model = self.registry.find(name)
        if model is None or not entry.may_use(model.names):
            raise unknown_model(name)
        return model

    def _models(self, route: Route, request: web.Request, head: RequestHead, entry: ApiKey) -> Sequence[NamedModel]:
        """The models that may answer: one, or all that the caller may use for a stored response.

        Without a name it is the only model of the caller; adapters count if the caller may use no other model. Raises
        `ApiError` 404 for an unknown model, and 400 if the request has to name one.
        """
        name = head.model
        if not name and route.model is not ModelIn.BODY:
            name = request.query.get("model", "")
        if name:
            return [self.find(name, entry)]
        models = [model for model in self.registry.models() if entry.may_use(model.names)]
        if route.model is ModelIn.STORED:
            return models
        models = [model for model in models if not model.adapter] or models
        if len(models) != 1:
            where = "add ?model=NAME to the path" + (", or a `model` to the body" if route.body_limit else "")
            raise ApiError(
                400, f"{len(models)} models are served here, so the request has to name one: {where}.", param="model"
            )
        return models

    async def _place(
        self, route: Route, request: web.Request, head: RequestHead, models: Sequence[NamedModel]
    ) -> tuple[NamedModel, StoredAt | None]:
        """The model that answers, and the place of the stored response to which the request refers."""
        tenant = request[ENTRY].tenant
        pools = list(dict.fromkeys(model.pool for model in models))
        if route.model is ModelIn.STORED:
            wanted = request.match_info["id"]
            found = await self.finder.find(pools, tenant, wanted, request[ID])
            if found is None:
                shown = wanted[:128]
                raise ApiError(
                    404, f"Response with id {shown!r} not found.", code="response_not_found", param="response_id"
                )
            # The replica that stores the response answers, whichever adapter generated it.
            return NamedModel(found[0]), found[1]
        if route.continues and (earlier := head.earlier_response()) is not None:
            found = await self.finder.find(pools, tenant, earlier, request[ID])
            if found is not None:
                return models[0], found[1]
        return models[0], None


def _prompt(
    route: Route, request: web.Request, head: RequestHead, entry: ApiKey, models: Sequence[NamedModel]
) -> Prompt:
    if not route.in_engine:
        return _NO_TOKENS
    (model,) = models
    pool, text, salt = model.pool, head.text(route.prompt), bytes(head.cache_salt)
    session = request.headers.get(pool.deployment.session_header)
    return pool.prompt(text, entry.tenant, salt, session, head.cache_key(), model.adapter)


def _path(route: Route, request: web.Request) -> str:
    """Path and query for the replica. Only reading routes have a query, and its `model` is for the gateway."""
    path = route.filled(**{name: request.match_info[name] for name in route.parameters})
    if route.method != "GET":
        return path
    parts = request.rel_url.raw_query_string.split("&")
    kept = "&".join(part for part in parts if part and part.partition("=")[0] != "model")
    return f"{path}?{kept}" if kept else path
