// Completes relative links and the addresses in the examples, which only the browser knows behind a proxy without X-Forwarded-Prefix; adds buttons that copy.
const here = new URL(location.href);
if (!here.pathname.endsWith("/")) {
  here.pathname += "/";
  location.replace(here);
}
const address = (here.origin + here.pathname).replace(/\/+$/, "");
if (/^[\w.~:/@%[\]-]+$/.test(address)) for (const each of document.querySelectorAll(".url")) each.textContent = address;
for (const figure of document.querySelectorAll("figure")) {
  if (!navigator.clipboard) break;
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(figure.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  figure.querySelector("figcaption").append(button);
}
