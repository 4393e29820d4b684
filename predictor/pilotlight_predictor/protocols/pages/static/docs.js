// Swagger UI of /openapi.json. Where that needs a token, a form takes one, which stays in this page.
const source = new URL("openapi.json", location.href);
const form = document.getElementById("token");
const problem = document.getElementById("problem");

async function show(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(source, { headers, credentials: "same-origin" });
  form.hidden = answer.status !== 401;
  problem.textContent = answer.ok ? "" : `${answer.status}: ${(await answer.text()).slice(0, 500)}`;
  if (!answer.ok) return;
  const spec = await answer.json();
  spec.servers = [{ url: new URL(".", source).href.replace(/\/$/, "") }];
  const ui = SwaggerUIBundle({
    spec, dom_id: "#api", validatorUrl: null, tryItOutEnabled: true, docExpansion: "list", defaultModelsExpandDepth: -1,
    onComplete: () => token && ui.preauthorizeApiKey("bearer", token),
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(form.querySelector("input").value.trim());
});
show("");
