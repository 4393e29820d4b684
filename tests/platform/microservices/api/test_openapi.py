"""The OpenAPI document and its page: valid, complete, and what a client is really answered."""

import re
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.platform.microservices.api.conftest import ORG, Api

from pilotlight.api.openapi import AREA
from pilotlight.control_plane.app import AREAS
from pilotlight.microservices.api import routes


@pytest.fixture(scope="module")
def described(api: Api) -> Any:
    return api.ok("GET", "/openapi.json", token="")


def test_the_document_is_valid_openapi(described: Any) -> None:
    assert not list(OpenAPIV31SpecValidator(described).iter_errors())


def test_every_route_is_in_the_document_with_a_summary(described: Any) -> None:
    for area in (*AREAS, AREA, *routes.AREAS):
        for route in () if area.internal else area.routes:
            told = described["paths"][re.sub(r":[^{}]*}", "}", route.path)][route.method.lower()]
            assert told["summary"].endswith("."), route
            assert bool(told["security"]) == (area.authorizer.__name__ != "allow_anonymous"), route


def test_answers_are_as_the_document_says(api: Api, described: Any, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    asked = {
        "/api/v1/orgs/{org}/experiments": f"/orgs/{ORG}/experiments",
        "/api/v1/orgs/{org}/experiments/{experiment}": f"/orgs/{ORG}/experiments/{experiment}",
        "/api/v1/orgs/{org}/experiments/{experiment}/jobs": f"/orgs/{ORG}/experiments/{experiment}/jobs",
        "/api/v1/orgs/{org}/experiments/{experiment}/jobs/{job}": f"/orgs/{ORG}/experiments/{experiment}/jobs/{parent}",
    }
    for path, real in asked.items():
        schema = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": described["components"]}
        jsonschema.Draft202012Validator(whole).validate(api.ok("GET", real))


def test_requests_of_each_kind_of_model_are_described(described: Any) -> None:
    body = described["paths"][f"{routes.MICROSERVICE}/inference"]["post"]["requestBody"]
    kinds = {each["$ref"].rpartition("/")[2] for each in body["content"]["application/json"]["schema"]["anyOf"]}
    assert {"Request.classification", "Request.vision-language", "Request.text", "Request.tensors"} <= kinds
    schema = described["components"]["schemas"]["Request.classification"]
    judge = jsonschema.Draft202012Validator(schema)
    assert judge.is_valid({"images": ["s3://bucket/image.jpg"], "batch_size": 1})
    assert judge.is_valid({"images": "s3://bucket/image.jpg"})
    assert not judge.is_valid({"images": "a.jpg", "batch_size": 0})
    assert not judge.is_valid({"batch_size": 1})
    assert not judge.is_valid({"images": "a.jpg", "temperature": 1})


def test_the_page_is_ours_alone(api: Api) -> None:
    page = api.ask("GET", "/docs", token="")
    assert (page.status, page.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert {each for each in named if not each.startswith("/api/v1/")} == set()
    for each in named:
        assert api.ask("GET", each.removeprefix("/api/v1"), token="").status == 200
    assert b"innerHTML" not in api.ask("GET", "/docs/docs.js", token="").body
    assert api.ask("GET", "/docs/..%2fapp.py", token="").status == 404
